// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "testing"

// TestOneFaultHasOneKey: two looks at one fault give one key, whatever else has changed between them.
func TestOneFaultHasOneKey(t *testing.T) {
	t.Parallel()
	pod := Pod{Namespace: "shop", Name: "web", UID: "u"}
	dead := Finding{
		Code: DisconnectedFUSE, Pod: pod, Volume: "pvc-1", Mount: Mount{ID: 7, MountInfoID: 21, Namespace: 1, Point: "/v"},
		Details: Details{Place: PlaceVolume, PersistentVolume: "pvc-1", SpecVolume: "data"},
	}
	copied := dead
	copied.Container, copied.Mount.Point, copied.Details.Place = "app", "/data", PlaceContainer
	nameless := copied
	nameless.Container = ""
	stale := Finding{Code: StaleSubPath, Pod: pod, Container: "app", Volume: "data", Mount: Mount{Point: "/s/0"}, Details: Details{PersistentVolume: "pvc-1"}}
	left := Finding{Code: OrphanedPodVolumes, Pod: pod, Details: Details{Path: "/pods/u"}}
	held := Finding{Code: HeldDevice, Pod: pod, Container: "agent", Volume: "pvc-1", Mount: Mount{Namespace: 5, Point: "/host/v"}, Details: Details{Device: "rbd3"}}
	for name, c := range map[string]struct {
		found Finding
		again func(*Finding)
		want  Key
	}{
		"a remount":                {dead, func(f *Finding) { f.Mount.ID, f.Mount.MountInfoID, f.Mount.Device = 9, 22, "0:50" }, Key{DisconnectedFUSE, "u", "", "pvc-1", "/v"}},
		"the kubelet's namespace":  {dead, func(f *Finding) { f.Mount.Namespace = 2 }, Key{DisconnectedFUSE, "u", "", "pvc-1", "/v"}},
		"a pod that is not known":  {dead, func(f *Finding) { f.Pod.Name, f.Details.SpecVolume = "", "" }, Key{DisconnectedFUSE, "u", "", "pvc-1", "/v"}},
		"a container's restart":    {copied, func(f *Finding) { f.Mount.Namespace, f.Mount.ID = 2, 9 }, Key{DisconnectedFUSE, "u", "app", "pvc-1", "/data"}},
		"a container of no name":   {nameless, func(f *Finding) { f.Mount.ID = 9 }, Key{DisconnectedFUSE, "u", "", "pvc-1", "ns:1:/data"}},
		"a spec that is not known": {stale, func(f *Finding) { f.Volume, f.Details.PersistentVolume = "pvc-1", "" }, Key{StaleSubPath, "u", "app", "pvc-1", "/s/0"}},
		"one volume that is left":  {left, func(f *Finding) { f.Volume = "config" }, Key{OrphanedPodVolumes, "u", "", "", "/pods/u"}},
		"a runtime that is silent": {held, func(f *Finding) { f.Pod, f.Container = Pod{}, "" }, Key{HeldDevice, "", "", "pvc-1", "dev:rbd3:ns:5:/host/v"}},
	} {
		again := c.found
		c.again(&again)
		if got, second := c.found.Key(), again.Key(); got != c.want || second != c.want {
			t.Errorf("%s: %+v, and then %+v, want %+v", name, got, second, c.want)
		}
	}
}

// TestKeysOfTwoFaults: another place, namespace or code is another fault.
func TestKeysOfTwoFaults(t *testing.T) {
	t.Parallel()
	f := Finding{Code: HungMount, Pod: Pod{UID: "u"}, Volume: "v", Mount: Mount{Namespace: 1, Point: "/data"}, Details: Details{Place: PlaceContainer}}
	for name, change := range map[string]func(*Finding){
		"another code":      func(f *Finding) { f.Code = StaleFileHandle },
		"another pod":       func(f *Finding) { f.Pod.UID = "w" },
		"another volume":    func(f *Finding) { f.Volume = "w" },
		"another path":      func(f *Finding) { f.Mount.Point = "/other" },
		"another namespace": func(f *Finding) { f.Mount.Namespace = 2 },
		"a container":       func(f *Finding) { f.Container = "app" },
	} {
		other := f
		if change(&other); other.Key() == f.Key() {
			t.Errorf("%s has the key %+v as well", name, f.Key())
		}
	}
}

// TestSubjectAndLocation: a MountFault counts the mounts of a volume as one, and those of a bind by container.
func TestSubjectAndLocation(t *testing.T) {
	t.Parallel()
	for code, container := range map[Code]string{StaleSubPath: "app", MissingBindSource: "app", HungMount: "", HeldDevice: "", OrphanedPodVolumes: ""} {
		k := Key{code, "u", "app", "v", "/p"}
		if got, want := k.Subject(), (Key{code, "u", container, "v", ""}); got != want {
			t.Errorf("%s: subject %+v, want %+v", code, got, want)
		}
		if got, want := k.Location(), (Key{"", "u", "app", "v", "/p"}); got != want {
			t.Errorf("%s: location %+v, want %+v", code, got, want)
		}
	}
}
