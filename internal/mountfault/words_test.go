// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/sentinel"
)

// only is the one object of a fault.
func (n *testNode) only(t *testing.T, present ...*sentinel.Fault) *v1.MountFault {
	t.Helper()
	chosen := n.Writer.objects.choose(n.Writer.objects.candidates(present), nil, maxListed, nil)
	if len(chosen) != 1 {
		t.Fatalf("%d objects", len(chosen))
	}
	return chosen[0]
}

func TestObjectOfAPod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.pod("web-5d5f8b6c5-x2x9k")
	yes := true
	p.Labels = map[string]string{"pod-template-hash": "5d5f8b6c5"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d5f8b6c5", Controller: &yes}}
	began := time.Unix(1_700_000_000, 0)
	f := changed(stale(p, "app"), func(f *sentinel.Fault) { f.Since = began })
	got := n.only(t, f)
	want := &v1.MountFault{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: got.Name, Labels: map[string]string{v1.LabelNode: "n1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
		},
		Status: v1.MountFaultStatus{
			Code: "StaleSubPath", Target: p.Name, Impact: v1.ImpactNextStart, Heal: v1.HealSafe, Node: "n1",
			Pod: &v1.FaultPod{Namespace: "shop", Name: p.Name, UID: p.UID}, Workload: &v1.Workload{Kind: "Deployment", Name: "web"},
			Container: "app", Volume: "config", Device: "0:93", Since: metav1.NewTime(began),
			Summary:  "container app, volume config: the file it is bound to was deleted or replaced; the next start of the container fails",
			Evidence: []string{"link count is 0"}, Plan: fault.Known().Advise(f.Finding, fault.Caller{}).Plan,
			Commands: []v1.FaultCommand{{
				Purpose: "shows the plan, asks, repairs it and proves it", Line: "kubediag recover shop/web-5d5f8b6c5-x2x9k",
			}, {
				Purpose: "removes the stale bind; the kubelet binds the current file at the next start",
				Line:    `nsenter -t 1 -m umount -- '/pods/it'\''s/0'`,
			}},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(v1.MountFaultStatus{}, "LastSeen")); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got.Name, p.Name+"-") || got.Name != n.only(t, stale(p, "app")).Name || got.Name == n.only(t, stale(p, "b")).Name {
		t.Errorf("name %q", got.Name)
	}
}

func TestObjectOfTheNode(t *testing.T) {
	t.Parallel()
	got := newNode(t).only(t, orphan("u1"))
	const dir = "/var/lib/kubelet/pods/u1"
	if s := got.Status; got.Namespace != "kubediag" || !strings.HasPrefix(got.Name, "n1-") || got.OwnerReferences != nil || s.Pod != nil ||
		s.Target != dir || s.Commands[0].Line != "kubediag recover u1" || s.Commands[1].Line != "find "+dir+" -xdev -ls" || s.Impact != v1.ImpactCleanup || s.Heal != v1.HealSafe ||
		s.Summary != dir+": the pod is gone and its directory is left" {
		t.Errorf("%+v", got)
	}
}

// TestObjectOfADevice: each device that is held is one fault of the node, also if the pod that holds it is known.
func TestObjectOfADevice(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.pod("exporter")
	held := func(device, point string) *sentinel.Fault {
		return &sentinel.Fault{Finding: fault.Finding{
			Code: fault.HeldDevice, Pod: podinfo.PodOf(p), Container: "app", Volume: "data", Mount: fault.Mount{Point: point, Namespace: 7},
			Details: fault.Details{Device: device, Place: fault.PlaceDevice, Repair: fault.Unmount},
		}}
	}
	got := n.only(t, held("rbd3", "/a"), held("rbd3", "/b"))
	if s := got.Status; got.Namespace != "kubediag" || !strings.HasPrefix(got.Name, "n1-") || got.OwnerReferences != nil || s.Pod != nil || s.Container != "" ||
		s.Target != "rbd3" || s.Device != "rbd3" || s.Impact != v1.ImpactDetach || s.Heal != v1.HealSafe || s.Evidence[0] != "mounts with this fault: 2" ||
		s.Summary != "rbd3: the device is still mounted elsewhere" {
		t.Errorf("%+v", got)
	}
	if found := n.Writer.objects.candidates([]*sentinel.Fault{held("rbd3", "/a"), held("rbd4", "/a")}); len(found) != 2 {
		t.Errorf("%d objects of two devices", len(found))
	}
}

// TestMountsOfOneVolume are one object with the worst of all.
func TestMountsOfOneVolume(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.pod("web")
	own, a, b := dead(p, ""), dead(p, "a"), dead(p, "b")
	own.Details.Repair, own.Details.Refusal, b.Details.Driver = fault.Replace, fault.Refusal{}, ""
	b.Details.Refusal = fault.Refuse(fault.NotProven, "the pod's spec asks for no subPath there")
	got := n.only(t, b, a, own)
	if s := got.Status; s.Container != "" || s.Heal != v1.HealPerson || s.Evidence[0] != "mounts with this fault: 3" ||
		s.Driver != "csi.example.org" || s.Commands[0].Line != "kubediag recover shop/web" || len(s.Commands) != 1 {
		t.Errorf("%+v", s)
	}
	if s := n.only(t, a).Status; s.Container != "a" { // its own mount was repaired
		t.Errorf("%+v", s)
	}
	if found := n.Writer.objects.candidates([]*sentinel.Fault{stale(p, "a"), stale(p, "b")}); len(found) != 2 {
		t.Errorf("%d objects of stale subPaths in two containers", len(found))
	}
}

// TestNamesOutliveAnUpgrade: the names are those of the releases before, and the object of a directory that is being emptied keeps
// its name.
func TestNamesOutliveAnUpgrade(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.pod("web")
	for want, f := range map[string]*sentinel.Fault{
		"shop/web-edbe896cda": stale(p, "app"),
		"shop/web-406bc363fc": changed(stale(p, "app"), func(f *sentinel.Fault) { f.Volume, f.Details.PersistentVolume = "data", "pvc-1" }),
		"shop/web-349ace10f5": changed(stale(p, "app"), func(f *sentinel.Fault) { f.Code, f.Mount = fault.MissingBindSource, fault.Mount{} }),
		"shop/web-20c36346bc": dead(p, "app"),
		"n1-1c44941c8a":       orphan("9a"),
	} {
		last := changed(f, func(f *sentinel.Fault) { f.Mount.ID++ })
		if f.Code == fault.OrphanedPodVolumes {
			last.Volume = "config" // the only one that is left
		}
		for _, f := range []*sentinel.Fault{f, last} {
			for name := range n.Writer.objects.candidates([]*sentinel.Fault{f}) {
				if got := strings.TrimPrefix(name.String(), n.Namespace+"/"); got != want {
					t.Errorf("%s of volume %q is %s, want %s", f.Code, f.Volume, got, want)
				}
			}
		}
	}
}

// TestTheAgentsWords are those that the API knows.
func TestTheAgentsWords(t *testing.T) {
	t.Parallel()
	var impacts []v1.FaultImpact
	for _, i := range fault.Impacts() {
		impacts = append(impacts, v1.FaultImpact(i))
	}
	var heals []v1.FaultHeal
	for _, h := range fault.Heals() {
		heals = append(heals, v1.FaultHeal(h))
	}
	if diff := cmp.Diff([]v1.FaultImpact{v1.ImpactNow, v1.ImpactTerminating, v1.ImpactNextStart, v1.ImpactDetach, v1.ImpactCleanup}, impacts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]v1.FaultHeal{v1.HealAutomatic, v1.HealSafe, v1.HealDriver, v1.HealPerson}, heals); diff != "" {
		t.Error(diff)
	}
}

// TestHolder is the process that holds the device, or serves the volume. Mode Automatic heals by itself.
func TestHolder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Writer.Recovery = func([]fault.Finding, *corev1.Pod) *v1.FaultRecovery {
		return &v1.FaultRecovery{Mode: v1.RecoveryAutomatic}
	}
	p := n.pod("web")
	f := dead(p, "")
	f.Details.Daemon, f.Details.Repair = &fault.Process{PID: 21, Command: "ceph-fuse"}, fault.Replace
	if s := n.only(t, f).Status; s.Holder != "ceph-fuse[21]" || s.Device != "0:93" || s.Heal != v1.HealAutomatic {
		t.Errorf("%+v", s)
	}
	f.Code, f.Details = fault.HeldDevice, fault.Details{HeldBy: &fault.Process{PID: 7, Command: "exporter"}, Device: "rbd3"}
	if s := n.only(t, f).Status; s.Holder != "exporter[7]" || s.Device != "rbd3" || s.Impact != v1.ImpactDetach {
		t.Errorf("%+v", s)
	}
}

func TestHarm(t *testing.T) {
	t.Parallel()
	for code, want := range map[fault.Code]string{
		fault.StaleSubPath: "the container cannot start now", fault.HungMount: "the pod cannot use the volume now",
	} {
		s := &v1.MountFaultStatus{Code: string(code), Pod: &v1.FaultPod{}, Volume: "data", Impact: v1.ImpactNow}
		if got := summary(s, "broken"); got != "volume data: broken; "+want {
			t.Errorf("%s: %q, want %q at its end", code, got, want)
		}
	}
}

// TestCommands: there are few, and each is whole or not there.
func TestCommands(t *testing.T) {
	t.Parallel()
	var a fault.Advice
	for range v1.MaxFaultCommands {
		a.Commands = append(a.Commands, fault.Command{Line: strings.Repeat("x", v1.MaxFaultCommand+1)}, fault.Command{Line: "a"}, fault.Command{Line: "b"})
	}
	want := []v1.FaultCommand{{Line: "a"}, {Line: "b"}, {Line: "a"}, {Line: "b"}}
	if diff := cmp.Diff(want, commands(a)); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	yes := true
	for name, c := range map[string]struct {
		hash  string
		owner *metav1.OwnerReference
		want  *v1.Workload
	}{
		"none":             {},
		"no controller":    {owner: &metav1.OwnerReference{Kind: "Job", Name: "j"}},
		"set":              {owner: &metav1.OwnerReference{Kind: "StatefulSet", Name: "db", Controller: &yes}, want: &v1.Workload{Kind: "StatefulSet", Name: "db"}},
		"of no deployment": {owner: &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web-1", Controller: &yes}, want: &v1.Workload{Kind: "ReplicaSet", Name: "web-1"}},
		"of another hash":  {hash: "2", owner: &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web-1", Controller: &yes}, want: &v1.Workload{Kind: "ReplicaSet", Name: "web-1"}},
	} {
		pod := &corev1.Pod{}
		pod.Labels = map[string]string{"pod-template-hash": c.hash}
		if c.owner != nil {
			pod.OwnerReferences = []metav1.OwnerReference{*c.owner}
		}
		if diff := cmp.Diff(c.want, workloadOf(pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestEventsGoToAllThatIsBroken: a dead volume's claim gets an Event too, and a stale subPath's does not.
func TestEventsGoToAllThatIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := func(name, volume string) *corev1.PersistentVolumeClaim {
			c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
			c.Namespace, c.Name, c.UID = "shop", name, "uid-c"
			return c
		}
		n := newNode(t, claim("other", "pv-2"), claim("web-scratch", "pv-1"))
		p := n.pod("web",
			corev1.Volume{Name: "gone", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "gone"}}},
			corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "other"}}},
			corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		)
		defer n.start(t)()
		f := dead(p, "")
		n.set(f)
		synctest.Wait()
		for _, o := range n.objects(t) {
			if o.Status.Claim != "web-scratch" {
				t.Errorf("claim %q", o.Status.Claim)
			}
			const text = " Warning DisconnectedFUSE: volume pv-1: the connection to its FUSE daemon is gone; csi.example.org has mounted nothing in " +
				"its place; the pod cannot use the volume now. See: kubectl get mf -n shop "
			want := []string{"Pod shop/web uid-web" + text + o.Name + " -o yaml", "PersistentVolumeClaim shop/web-scratch uid-c" + text + o.Name + " -o yaml"}
			if diff := cmp.Diff(want, n.said()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		}
		n.set(changed(f, func(f *sentinel.Fault) { f.Details.Repair = fault.Replace }))
		time.Sleep(Interval + time.Second)
		for _, o := range n.objects(t) {
			if o.Status.Claim != "web-scratch" || o.Status.Heal != v1.HealSafe {
				t.Errorf("after a change: %+v", o.Status)
			}
		}
		n.said()
		n.set(f, stale(p, "app"))
		synctest.Wait()
		if events := n.said(); len(events) != 1 || !strings.HasPrefix(events[0], "Pod shop/web uid-web Warning StaleSubPath: ") {
			t.Errorf("a stale subPath: %q", events)
		}
		n.mu.Lock()
		n.pods = nil
		n.mu.Unlock()
		n.set()
		time.Sleep(time.Minute)
		if events := n.said(); len(events) != 0 {
			t.Errorf("the pod is gone: %q", events)
		}
	})
}
