// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/cri"
)

// slowRuntime answers after a while and counts how often it was asked.
type slowRuntime struct {
	takes time.Duration
	err   error
	asked atomic.Int32
}

func (f *slowRuntime) wait(ctx context.Context) error {
	f.asked.Add(1)
	select {
	case <-time.After(f.takes):
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *slowRuntime) Owner(ctx context.Context, _ string) (cri.Owner, error) {
	return cri.Owner{Container: "app"}, f.wait(ctx)
}

func (f *slowRuntime) Sandboxes(ctx context.Context) ([]cri.Sandbox, error) {
	return []cri.Sandbox{{Name: "web"}}, f.wait(ctx)
}

func (f *slowRuntime) PodRecords(ctx context.Context, uid string) ([]cri.Container, error) {
	return []cri.Container{{PodUID: uid}}, f.wait(ctx)
}

func (f *slowRuntime) Running(ctx context.Context, _ func(string) bool) ([]cri.Owner, error) {
	return nil, f.wait(ctx)
}

func (f *slowRuntime) States(ctx context.Context, _ func(string, string) bool) ([]cri.State, error) {
	return nil, f.wait(ctx)
}

func cgroupOf(digit string) string { return "0::/kubepods/pod1/" + strings.Repeat(digit, 64) + "\n" }

func TestRuntimeIsAskedOnceForEach(t *testing.T) {
	t.Parallel()
	for _, answer := range []error{nil, cri.ErrNotFound} {
		fake := &slowRuntime{err: answer}
		r := &boundedRuntime{runtime: fake, owners: map[string]ownerAnswer{}}
		for range 3 {
			for _, digit := range []string{"a", "b"} {
				if owner, err := r.Owner(t.Context(), cgroupOf(digit)); owner.Container != "app" || !errors.Is(err, answer) {
					t.Errorf("owner %+v, error %v", owner, err)
				}
			}
			if _, err := r.Owner(t.Context(), "0::/system.slice/sshd.service\n"); !errors.Is(err, cri.ErrNotFound) {
				t.Errorf("a process in no container: %v", err)
			}
		}
		if fake.asked.Load() != 2 || len(r.errorTexts()) > 0 {
			t.Errorf("asked %d times, errors %q", fake.asked.Load(), r.errorTexts())
		}
		if answer != nil {
			continue
		}
		for range 3 {
			if all, err := r.Sandboxes(t.Context()); err != nil || len(all) != 1 {
				t.Errorf("sandboxes %v, %v", all, err)
			}
		}
		if fake.asked.Load() != 3 {
			t.Errorf("asked %d times, want once for the sandboxes", fake.asked.Load())
		}
	}
}

func TestRuntimeThatFailsIsSaidToHave(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	fake := &slowRuntime{err: broken}
	r := &boundedRuntime{runtime: fake, owners: map[string]ownerAnswer{}}
	_, err := r.Owner(t.Context(), cgroupOf("a"))
	if errs := r.errorTexts(); !errors.Is(err, broken) || len(errs) != 1 || errs[0] != "runtime: broken" {
		t.Errorf("error %v, errors %q", err, errs)
	}
	fake.err = nil // it may know of one thing and not of another
	if all, err := r.Sandboxes(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("sandboxes %v, %v", all, err)
	}
}

func TestRuntimeIsWaitedForInAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := &slowRuntime{takes: nameTimeout * 2 / 3}
		r := &boundedRuntime{runtime: fake, owners: map[string]ownerAnswer{}, expected: true}
		r.socket.Store("/run/runtime.sock")
		start := time.Now()
		if _, err := r.Owner(t.Context(), cgroupOf("a")); err != nil {
			t.Errorf("first: %v", err)
		}
		for _, digit := range []string{"b", "c"} {
			if _, err := r.Owner(t.Context(), cgroupOf(digit)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: error %v, want the deadline", digit, err)
			}
		}
		if took := time.Since(start); took != nameTimeout || fake.asked.Load() != 2 {
			t.Errorf("asked %d times in %v, want %v in all", fake.asked.Load(), took, nameTimeout)
		}
		gaps := r.coverageGaps()
		if len(gaps) != 1 || !strings.Contains(gaps[0].What, "unix:///run/runtime.sock") || gaps[0].Why != "it did not answer for 0.7 s" {
			t.Errorf("not looked at: %q, want the runtime, its socket and the wait", gaps)
		}
		if r.expected = false; len(r.coverageGaps()) > 0 {
			t.Errorf("not looked at where no runtime is expected: %q", r.coverageGaps())
		}
		synctest.Wait()
	})
}

// TestRunningContainersHaveATimeOfTheirOwn: a runtime that is too slow for all containers is still asked for names, and is no gap.
func TestRunningContainersHaveATimeOfTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := &slowRuntime{takes: nameTimeout / 3}
		r := &boundedRuntime{runtime: fake, owners: map[string]ownerAnswer{}, expected: true}
		if _, err := r.Owner(t.Context(), cgroupOf("a")); err != nil {
			t.Error(err)
		}
		fake.takes = 2 * nameTimeout
		if _, err := r.Running(t.Context(), func(string) bool { return true }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("running containers: %v, want the deadline", err)
		}
		synctest.Wait() // the call that was given up has read how long it takes
		fake.takes = nameTimeout / 3
		if all, err := r.Sandboxes(t.Context()); err != nil || len(all) != 1 || len(r.coverageGaps()) > 0 {
			t.Errorf("sandboxes %v, %v, gaps %q", all, err, r.coverageGaps())
		}
		synctest.Wait()
	})
}
