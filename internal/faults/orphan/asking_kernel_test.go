// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
)

// cachedScene is a scene with a cache that knows the pod that lives.
func cachedScene(t *testing.T) (*orphantest.Scene, orphantest.Cache) {
	s, cache := orphantest.New(t), orphantest.Cache{orphantest.Live: true}
	s.Inspector.Cache = cache
	return s, cache
}

// TestAsksWhereItDecides: the API server is asked only where nothing else speaks against that a pod is gone.
func TestAsksWhereItDecides(t *testing.T) {
	const static = "0d2a2ae45a0c4f0f8f6c7a3c3f7c1d11"
	for name, c := range map[string]struct {
		set   func(s *orphantest.Scene, cache orphantest.Cache)
		asked int
		pods  int    // how many are listed
		why   string // none of these is orphaned; empty: all are
	}{
		"all are known":              {func(*orphantest.Scene, orphantest.Cache) {}, 0, 0, ""},
		"it is another that is left": {func(s *orphantest.Scene, c orphantest.Cache) { s.Leave(goneUID); c[goneUID] = true }, 0, 0, ""},
		"it has a sandbox": {func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Leave(goneUID)
			s.Runtime.All = append(s.Runtime.All, cri.Sandbox{PodUID: goneUID})
		}, 0, 0, ""},
		"it is young": {func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Leave(goneUID)
			s.Inspector.Now = time.Now
		}, 0, 1, "600 have to pass"},
		"it is a static pod": {func(s *orphantest.Scene, _ orphantest.Cache) { s.Leave(static) }, 0, 1, "static pod"},
		"the runtime is silent": {func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Leave(goneUID)
			s.Runtime.Broken = cri.ErrUnavailable
		}, 0, 1, "runtime could not be asked"},
		"two are left":        {func(s *orphantest.Scene, _ orphantest.Cache) { s.Leave(goneUID); s.Leave(orphantest.Other) }, 1, 2, ""},
		"the cache is behind": {func(s *orphantest.Scene, _ orphantest.Cache) { s.Leave(goneUID); s.Server.Knows(goneUID) }, 1, 0, ""},
		"the API server is silent": {func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Leave(goneUID)
			s.Server.Broken = errors.New("no route")
		}, 1, 1, "no route"},
		"the API server lists nobody": {func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Leave(goneUID)
			s.Server.Pods = nil
		}, 1, 1, "no pod in common"},
	} {
		t.Run(name, func(t *testing.T) {
			s, cache := cachedScene(t)
			c.set(s, cache)
			found := surveyScene(t, s)
			if s.Server.Asked != c.asked || len(found.Pods) != c.pods {
				t.Errorf("asked %d times, %d pods listed, want %d and %d", s.Server.Asked, len(found.Pods), c.asked, c.pods)
			}
			for _, p := range found.Pods {
				if p.Orphaned != (c.why == "") || !strings.Contains(strings.Join(p.Unproven, "\n"), c.why) {
					t.Errorf("pod %s: orphaned %v, unproven %q, want %q", p.UID, p.Orphaned, p.Unproven, c.why)
				}
			}
			// A server that has said that the pod is gone is not asked again, and one that has not is.
			again := c.asked
			if c.why != "" || len(found.Pods) == 0 {
				again *= 2
			}
			if surveyScene(t, s); s.Server.Asked != again {
				t.Errorf("asked %d times for two surveys, want %d", s.Server.Asked, again)
			}
		})
	}
}

// TestAsksOnceForAPlan: the removals of all its pods rest on one answer. Another agent has not heard it.
func TestAsksOnceForAPlan(t *testing.T) {
	s, cache := cachedScene(t)
	s.Leave(goneUID)
	s.Leave(orphantest.Other)
	var steps []fault.Action
	for _, p := range surveyScene(t, s).Pods {
		steps = append(steps, p.Actions...)
	}
	if len(steps) != 2*len(wholePlan) {
		t.Fatalf("%d steps, want %d", len(steps), 2*len(wholePlan))
	}
	for i, step := range steps {
		if i == len(wholePlan)+2 {
			s.Inspector = &orphan.Inspector{
				Kubelet: s.Inspector.Kubelet, Pods: s.Server, Runtime: s.Runtime, Cache: cache, Now: s.Inspector.Now,
			}
		}
		if gone, err := s.Inspector.Apply(t.Context(), step); gone || err != nil {
			t.Fatalf("apply %s: gone %v, %v", step.Target, gone, err)
		}
		if want := 1 + i/(len(wholePlan)+2); s.Server.Asked != want {
			t.Fatalf("asked %d times after step %d, want %d", s.Server.Asked, i, want)
		}
	}
}

// TestGoneOnlyWhileNoSourceKnowsThePod: that a pod is gone was said once, but the cache and the runtime are heard each
// time.
func TestGoneOnlyWhileNoSourceKnowsThePod(t *testing.T) {
	for name, set := range map[string]func(s *orphantest.Scene, cache orphantest.Cache){
		"the cache": func(_ *orphantest.Scene, cache orphantest.Cache) { cache[goneUID] = true },
		"the runtime": func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Runtime.All = append(s.Runtime.All, cri.Sandbox{PodUID: goneUID})
		},
		// It is asked for another that is left.
		"the API server": func(s *orphantest.Scene, _ orphantest.Cache) {
			s.Server.Knows(goneUID)
			s.Leave(orphantest.Other)
			surveyScene(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, cache := cachedScene(t)
			s.Leave(goneUID)
			steps := onlyPod(t, s).Actions
			set(s, cache)
			expectRefused(t, s, steps, "knows the pod")
			for _, p := range surveyScene(t, s).Pods {
				if p.UID == goneUID {
					t.Errorf("it is listed: %+v", p)
				}
			}
		})
	}
	s, cache := cachedScene(t)
	s.Leave(goneUID)
	steps := onlyPod(t, s).Actions
	cache[goneUID] = true
	surveyScene(t, s)
	delete(cache, goneUID)
	s.Server.Knows(goneUID)
	expectRefused(t, s, steps, "knows the pod") // since the cache has known it, it is asked for again
}

// deletingServer is an API server that has a pod be deleted while it is asked, which begins at that moment.
type deletingServer struct{ *orphantest.Scene }

func (d deletingServer) PodsNow(ctx context.Context) ([]metav1.ObjectMeta, error) {
	d.Runtime.All = append(d.Runtime.All, cri.Sandbox{PodUID: goneUID})
	return d.Server.PodsNow(ctx)
}

// TestBeginsWhileItIsDeleted: what the runtime has said before the API server is not enough.
func TestBeginsWhileItIsDeleted(t *testing.T) {
	s, _ := cachedScene(t)
	s.Leave(goneUID)
	s.Inspector.Pods = deletingServer{s}
	if found := surveyScene(t, s); len(found.Pods) > 0 || s.Server.Asked != 1 {
		t.Errorf("asked %d times, listed %+v, want none", s.Server.Asked, found.Pods)
	}
}

// TestNotAskedFor: a pod that was too young when it was decided whom to ask is not orphaned once it no longer is.
func TestNotAskedFor(t *testing.T) {
	s, _ := cachedScene(t)
	s.Leave(goneUID)
	looks := 0
	s.Inspector.Now = func() time.Time {
		looks++
		return time.Now().Add(time.Duration(looks-1) * time.Hour)
	}
	if p := onlyPod(t, s); p.Orphaned || len(p.Actions) > 0 || s.Server.Asked > 0 || !strings.Contains(p.Unproven[0], "not asked for it") {
		t.Errorf("asked %d times, pod %+v", s.Server.Asked, p)
	}
}

// TestGoneWhileConfirmed: what the kubelet removes while an action is confirmed is gone, and no failure.
func TestGoneWhileConfirmed(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	first := onlyPod(t, s).Actions[0]
	now := s.Inspector.Now
	s.Inspector.Now = func() time.Time {
		if err := os.RemoveAll(first.File.Path); err != nil {
			t.Error(err)
		}
		return now()
	}
	if gone, err := s.Inspector.Apply(t.Context(), first); !gone || err != nil {
		t.Errorf("gone %v: %v", gone, err)
	}
}
