// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
)

const (
	orphanCode = "OrphanedPodVolumes"
	orphanAge  = "30s"

	// youngOrphans is the build tag with which kubediag takes a minimum age of less than the five minutes that those of a
	// release take at least. It changes nothing but that number.
	youngOrphans = "youngorphans"

	// orphanedPod is the file with the Operations and the OperationSet that find and remove them.
	orphanedPod = "../../config/operations/orphaned-pod.yaml"
)

// The pods that are stranded, by what is left of their volume. The record of those below kept was not written out.
const (
	empty1 = iota
	empty2
	filled // has a file in the directory that the volume was mounted on
	busy   // has something mounted on the volume's directory, in the mount namespace of a service of the node
	kept   // has the record of its volume
	strandedPods
)

// orphans are pods that were deleted by force while their node was being reset.
type orphans struct {
	*cephVolume
	version string
	pods    []corev1.Pod
	left    []string // UIDs of those that the kubelet cannot clear away
}

func (o *orphans) uid(i int) string { return string(o.pods[i].UID) }

func (o *orphans) dir(uid string) string { return filepath.Join(o.KubeletRoot(), "pods", uid) }

// volume is the directory of a pod's volume, in which it is mounted on "mount".
func (o *orphans) volume(i int) string { return filepath.Dir(o.mounted(&o.pods[i])) }

// strand leaves on the node what a reset leaves of pods that nobody wants any more, and shows what the kubelet does about it.
func (o *orphans) strand(t *testing.T) {
	o.pods = o.driver.Start(t, readersOf("stranded", volumeName, strandedPods))
	must(t, o.StopKubelet(t.Context()))
	o.deletePods(t)
	errs := make([]error, len(o.pods))
	var wg sync.WaitGroup
	for i := range o.pods {
		wg.Go(func() { errs[i] = o.RemovePod(t.Context(), o.uid(i)) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
	for i := range o.pods {
		o.unmountAll(t, o.dir(o.uid(i)))
		if i < kept {
			must(t, os.Truncate(filepath.Join(o.volume(i), "vol_data.json"), 0))
		}
	}
	must(t, os.WriteFile(filepath.Join(o.volume(filled), "mount/data"), []byte("nobody's but the user's"), 0o600))
	o.nsenter(t, "mount", "-t", "tmpfs", "none", o.volume(busy))
	show, began := o.driver.Hide(t), o.logged(t)
	must(t, o.StartKubelet(t.Context()))
	o.awaitLog(t, began, o.uid(kept), "not found in the list of registered CSI drivers")
	if o.version != cluster.Kubernetes118 {
		o.checkWaits(t)
	}
	show()
	o.checkLeft(t, began)
	for i := range o.cephVolume.pods { // a kubelet that has started has the volumes of all pods mounted again, which heals dead ones
		o.awaitLog(t, began, string(o.cephVolume.pods[i].UID), "MountVolume.SetUp succeeded", csi.Name+"^")
	}
}

// checkWaits shows that nothing is removed of a pod whose volume the kubelet waits for the driver to finish with.
func (o *orphans) checkWaits(t *testing.T) {
	t.Helper()
	began := time.Now()
	var evidence []string
	o.Wait(t, "the pod that the kubelet waits for to be older than a second", func(context.Context) bool {
		report, _ := o.scan(t, "--pods", o.podsFile(t), "--orphan-minimum-age", "1s")
		at := slices.IndexFunc(report.Faults, func(f scanFault) bool { return f.Code == orphanCode && f.Pod.UID == o.uid(kept) })
		if at >= 0 {
			evidence = report.Faults[at].Evidence
		}
		return at >= 0
	})
	checkContains(t, strings.Join(evidence, "\n"), "nothing of it is removed", "may be waiting for driver "+strconv.Quote(csi.Name),
		"bring the driver back")
	t.Logf("kubediag scan says so after %.1f s", time.Since(began).Seconds())
}

// checkLeft shows which of them the kubelet cannot clear away. The older one tries a volume once, and before it knows the
// driver.
func (o *orphans) checkLeft(t *testing.T, began int) {
	t.Helper()
	says := fmt.Sprintf("error occurred when trying to remove the volumes dir: %s", unix.ENOTDIR)
	n := kept
	if o.version == cluster.Kubernetes118 {
		says = "failed to rmdir() volume at path " // and the path
		n = strandedPods
	} else {
		o.awaitGone(t, o.uid(kept))
	}
	for i := range n {
		text := says
		if o.version == cluster.Kubernetes118 {
			text += o.volume(i) + ": " + unix.ENOTEMPTY.Error()
		}
		o.awaitLog(t, began, "rphaned pod", o.uid(i), text)
		o.left = append(o.left, o.uid(i))
	}
}

// deletePods deletes the pods by force, and keeps others from coming in their place.
func (o *orphans) deletePods(t *testing.T) {
	t.Helper()
	o.Kubectl(t, "", "scale", "-n", "default", "deployment/stranded", "--replicas=0")
	o.Wait(t, "the stranded pods to be deleted", func(ctx context.Context) bool {
		var list corev1.PodList
		return o.List(ctx, &list, client.MatchingLabels{"app": "stranded"}) == nil &&
			!slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
	})
	o.Kubectl(t, "", "delete", "pods", "-n", "default", "-l", "app=stranded", "--grace-period=0", "--force")
}

// unmountAll unmounts all mounts below a directory. An agent that probes a mount keeps it busy for a moment.
func (o *orphans) unmountAll(t *testing.T, dir string) {
	t.Helper()
	for _, m := range slices.Backward(o.mounts(t)) {
		if !mountinfo.Within(dir, m.Point) {
			continue
		}
		o.Wait(t, "the mount at "+m.Point+" to be free", func(context.Context) bool {
			err := unix.Unmount(m.Point, unix.UMOUNT_NOFOLLOW)
			if !errors.Is(err, unix.EBUSY) {
				must(t, err)
			}
			return err == nil
		})
	}
}

// nsenter runs a program of the node in the mount namespace of a service.
func (o *orphans) nsenter(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--mount", "--target=" + strconv.Itoa(o.service)}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// serviceNamespace is what people are told of the service's mount namespace.
func (o *orphans) serviceNamespace(t *testing.T) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", o.service), &st))
	return fmt.Sprintf("mount namespace %d", st.Ino)
}

// log is what the kubelet has written from a position on.
func (o *orphans) log(t *testing.T, from int) string {
	t.Helper()
	return o.kubeletLog(t)[from:]
}

// logged is the position up to which the kubelet has written its log.
func (o *orphans) logged(t *testing.T) int { return len(o.log(t, 0)) }

// awaitLog waits for a line of the kubelet's with all of this, and gives the position up to which it was looked for.
func (o *orphans) awaitLog(t *testing.T, from int, parts ...string) (end int) {
	t.Helper()
	o.Wait(t, fmt.Sprintf("the kubelet to say %q", parts), func(context.Context) bool {
		text := o.log(t, from)
		end = from + len(text)
		for line := range strings.Lines(text) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return true
			}
		}
		return false
	})
	return end
}

// awaitGone waits until the directory of a pod is gone.
func (o *orphans) awaitGone(t *testing.T, uid string) {
	t.Helper()
	o.Wait(t, "the directory of pod "+uid+" to go", func(context.Context) bool {
		_, err := os.Lstat(o.dir(uid))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// find has the sentinel and the verb of the node find them.
func (o *orphans) find(t *testing.T) {
	o.awaitCounted(t)
	o.checkScanned(t, o.left)
	if report, _ := o.scan(t, "--pods", o.podsFile(t)); len(report.Faults) > 0 {
		t.Errorf("of those who are younger than ten minutes the verb says %+v", report.Faults)
	}
}

// podsFile has the pods of the cluster, as the README says.
func (e *env) podsFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(file, []byte(e.Kubectl(t, "", "get", "pods", "-A", "-o", "json")), 0o600))
	return file
}

// checkScanned runs kubediag scan, which finds these and nothing else, and says of two why they stay.
func (o *orphans) checkScanned(t *testing.T, want []string) {
	t.Helper()
	report, status := o.scan(t, "--pods", o.podsFile(t), "--orphan-minimum-age", orphanAge)
	var found []string
	for _, f := range report.Faults {
		found = append(found, f.Pod.UID)
		text := strings.Join(f.Evidence, "\n")
		checkContains(t, f.Code+"\n"+text, orphanCode, o.dir(f.Pod.UID))
		switch f.Pod.UID {
		case o.uid(filled):
			checkContains(t, text, "nothing of it is removed", "volumes/kubernetes.io~csi/"+volumeName+"/mount/data", "may have data")
		case o.uid(busy):
			checkContains(t, text, "nothing of it is removed", "mounts that show it to be in use: 1", strconv.Quote(o.volume(busy)), o.serviceNamespace(t))
		default:
			if strings.Contains(text, "nothing of it is removed") {
				t.Errorf("of pod %s: %s", f.Pod.UID, text)
			}
		}
	}
	slices.Sort(found)
	want = slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, found); diff != "" || status != 1 {
		t.Errorf("scan ends with status %d, directories that it finds (-want +got):\n%s", status, diff)
	}
}

// heal has Diagnoses remove what is empty: of one pod, while others must not be touched; and of the rest, once these are gone.
func (o *orphans) heal(t *testing.T) {
	mounts, live := o.mounts(t), o.live(t)
	hazards := o.trees(t, o.uid(filled), o.uid(busy))
	o.Kubectl(t, "", "apply", "-f", orphanedPod)

	d := o.diagnose(t, "orphans-one", "1")
	checkEnd(t, d, v1.DiagnosisSucceeded, v1.OutcomeFaultFound)
	checkContains(t, d.Status.OperationResults["recover.kubernetes.orphaned_pods.refused"], o.uid(filled), "may have data", o.uid(busy),
		"mounts that show it to be in use: 1", o.serviceNamespace(t), "is left for another run")
	o.checkCleared(t, d)
	if diff := cmp.Diff(hazards, o.trees(t, o.uid(filled), o.uid(busy))); diff != "" {
		t.Errorf("what must not be touched (-before +after):\n%s", diff)
	}

	o.clear(t)
	d = o.diagnose(t, "orphans-all", "10")
	checkEnd(t, d, v1.DiagnosisSucceeded, v1.OutcomeHealed)
	o.checkCleared(t, d)
	if len(o.left) > 0 {
		t.Errorf("left: %q", o.left)
	}
	o.checkOtherMounts(t, mounts, func(string) bool { return false })
	if diff := cmp.Diff(live, o.live(t)); diff != "" {
		t.Errorf("directories of the pods that live (-before +after):\n%s", diff)
	}
}

// awaitCounted waits until the sentinel has looked for the first time, and counts those that are left.
func (o *orphans) awaitCounted(t *testing.T) {
	t.Helper()
	began := time.Now()
	o.Wait(t, "the orphans to be counted", func(context.Context) bool { return o.faults(t, orphanCode) > 0 })
	if n := o.faults(t, orphanCode); n != len(o.left) {
		t.Errorf("the metric says %d faults, not %d", n, len(o.left))
	}
	t.Logf("the metric says %d faults after %.1f s", len(o.left), time.Since(began).Seconds())
}

// diagnose runs a Diagnosis that removes what is left of so many pods at most.
func (o *orphans) diagnose(t *testing.T, name, limit string) *v1.Diagnosis {
	t.Helper()
	d := diagnosisOf("default", name, "orphaned-pod-op-set", o.NodeName(), nil)
	d.Spec.Parameters = map[string]string{"param.recover.kubernetes.orphaned_pods.limit": limit}
	d = o.runDiagnosis(t, d)
	t.Logf("results %q", d.Status.OperationResults["recover.kubernetes.orphaned_pods.results"])
	return d
}

// checkCleared shows that the kubelet removes the rest of what a Diagnosis has repaired, and is content.
func (o *orphans) checkCleared(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	var healed []string
	for _, f := range d.Status.Faults {
		if f.State == v1.FaultHealed {
			healed = append(healed, string(f.Pod.UID))
		}
	}
	if len(healed) == 0 {
		t.Fatalf("nothing is healed: %+v", d.Status.Faults)
	}
	for _, uid := range healed {
		checkContains(t, d.Status.OperationResults["recover.kubernetes.orphaned_pods.results"],
			uid+`\", which is gone; nothing is left of its directory`)
		o.awaitGone(t, uid)
	}
	o.left = slices.DeleteFunc(o.left, func(uid string) bool { return slices.Contains(healed, uid) })
	from := o.logged(t)
	if len(o.left) > 0 {
		from = o.awaitLog(t, from, "rphaned pod", o.left[0]) // of the round in which the last one may have gone
		end := o.awaitLog(t, from, "rphaned pod", o.left[0])
		for _, uid := range healed {
			if text := o.log(t, from)[:end-from]; strings.Contains(text, uid) {
				t.Errorf("the kubelet still speaks of pod %s:\n%s", uid, text)
			}
		}
	}
}

// clear does what a person does about those that kubediag does not touch.
func (o *orphans) clear(t *testing.T) {
	t.Helper()
	o.nsenter(t, "umount", o.volume(busy))
	must(t, os.Remove(filepath.Join(o.volume(filled), "mount/data")))
	for _, i := range []int{busy, filled} {
		must(t, os.RemoveAll(o.volume(i)))
	}
	for _, i := range []int{busy, filled} {
		o.awaitGone(t, o.uid(i))
		o.left = slices.DeleteFunc(o.left, func(uid string) bool { return uid == o.uid(i) })
	}
}

// trees describes everything in the directories of pods, contents and times included.
func (o *orphans) trees(t *testing.T, uids ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, uid := range uids {
		o.walk(t, uid, func(name string, info fs.FileInfo) {
			st := info.Sys().(*syscall.Stat_t)
			all[name] = fmt.Sprint(info.Mode(), st.Ino, st.Nlink, st.Uid, st.Gid, info.Size(), st.Mtim, st.Ctim)
			if info.Mode().IsRegular() {
				text, err := os.ReadFile(name)
				must(t, err)
				all[name] += fmt.Sprintf(" %x", sha256.Sum256(text))
			}
		})
	}
	return all
}

// live lists everything in the directories of the pods that there are.
func (o *orphans) live(t *testing.T) map[string]string {
	t.Helper()
	var pods corev1.PodList
	must(t, o.List(t.Context(), &pods))
	all := map[string]string{}
	for _, p := range pods.Items {
		o.walk(t, string(p.UID), func(name string, info fs.FileInfo) {
			all[name] = fmt.Sprint(info.Mode(), info.Sys().(*syscall.Stat_t).Ino)
		})
	}
	return all
}

func (o *orphans) walk(t *testing.T, uid string, see func(name string, info fs.FileInfo)) {
	t.Helper()
	must(t, filepath.WalkDir(o.dir(uid), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			see(name, info)
		}
		return err
	}))
}
