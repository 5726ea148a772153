// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// answersAs is a prober for whom the volume has the given state, and the source of the bind was deleted.
type answersAs struct {
	volume   string // its mount point
	ofVolume probe.State
}

func (a *answersAs) Ask(_ context.Context, targets []probe.Target) (all []probe.Answer, err error) {
	for i, asked := range targets {
		answer := probe.Answer{Target: i, State: probe.Missing, Errno: sys.ENOENT, ID: asked.ID}
		if asked.Point == a.volume && asked.Below == "" {
			answer.State, answer.Errno, answer.Bindable = a.ofVolume, 0, probe.Yes
		}
		all = append(all, answer)
	}
	return all, nil
}

// TestRepairWaitsForAnAnswer has the file system of a stale bind not answer at the moment of its repair. No answer is no proof that the bind is healthy,
// so the repair is tried again.
func TestRepairWaitsForAnAnswer(t *testing.T) {
	for _, silence := range []probe.State{probe.Silent, probe.Hung, probe.NotProbed} {
		t.Run(string(silence), func(t *testing.T) {
			w := newRepairScene(t)
			volume := filepath.Join(w.Volume(w.pod, "kubernetes.io/csi", "pvc-1"), "mount")
			must(t, os.MkdirAll(volume, 0o755))
			must(t, sys.NewMount("memory", volume, "ramfs", "")) // of no type that the kernel alone can judge
			must(t, os.Mkdir(filepath.Join(volume, "gone"), 0o755))
			w.ask(0, "claim", "gone")
			point := w.Point(w.pod, "pvc-1", "app", 1)
			must(t, os.MkdirAll(point, 0o755))
			must(t, mount.Bind(filepath.Join(volume, "gone"), point))
			prober := &answersAs{volume: volume, ofVolume: probe.Alive}
			w.healer.Sources = subpath.Sources{Prober: prober}
			p := w.plan(t)
			if len(p.Actions) != 1 || p.Actions[0].Target != point {
				t.Fatalf("plan %+v, want the unmount of %q", p, point)
			}
			prober.ofVolume = silence
			_, err := repairtest.Apply(t.Context(), repairtest.NewEngine(), w.request, w.healer, p.Actions[0])
			if waiting, ok := errors.AsType[*processor.WaitingError](err); !ok || waiting.After <= 0 || processor.IsStalled(err) || !isMounted(point) {
				t.Errorf("without an answer: %v, mounted %v, want another try after a while", err, isMounted(point))
			}
			prober.ofVolume = probe.Alive
			if _, err := repairtest.Apply(t.Context(), repairtest.NewEngine(), w.request, w.healer, p.Actions[0]); err != nil || isMounted(point) {
				t.Errorf("with an answer: %v, mounted %v", err, isMounted(point))
			}
		})
	}
}

func isMounted(point string) bool {
	_, err := mount.Inspect(point)
	return err == nil
}
