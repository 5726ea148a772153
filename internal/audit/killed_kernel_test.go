// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package audit

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/sentinel"
)

func TestMain(m *testing.M) { kerneltest.Main(m, kerneltest.Roles{"sentinel": watchNode}) }

// killed is the guard, the observer and the pods of a sentinel that is killed at a point.
type killed struct {
	*Recorder
	pod      *corev1.Pod
	point    string
	recorded chan struct{}
}

// at kills this process if its time has come.
func (k killed) at(point string) {
	if k.point != point {
		return
	}
	if p, err := os.FindProcess(os.Getpid()); err != nil || p.Kill() != nil {
		panic("the sentinel cannot be killed")
	}
	select {}
}

func (k killed) PodByUID(uid string) *corev1.Pod {
	if uid != string(k.pod.UID) {
		return nil
	}
	return k.pod
}

func (killed) Mode(fault.Code, *corev1.Pod) sentinel.Mode               { return sentinel.Automatic }
func (killed) Acquire(context.Context, fault.Finding, *corev1.Pod) bool { return true }
func (killed) Subscribe() <-chan struct{}                               { return nil }
func (k killed) Ended(fault.Key, fault.Pod, error)                      { k.at("done") }
func (killed) Found(fault.Finding, time.Duration)                       {}
func (killed) Trouble(err error)                                        { panic(err) }

func (k killed) Begin(r sentinel.Repair) error {
	k.at("planned")
	err := k.Recorder.Begin(r, byPolicy)
	k.at("begun")
	return err
}

func (k killed) Repaired(r sentinel.Repair) {
	k.at("proven")
	k.Add(r, k.Decision(r))
	k.at("added")
	close(k.recorded)
}

// watchNode runs the sentinel of a node until it has recorded a repair, or until it is killed.
func watchNode(args []string, ready func(string)) error {
	node, err := kubelet.Local(args[0])
	if err != nil {
		return err
	}
	s := newServer()
	s.down.Store(true) // the records stay on the disk
	r, err := New(Options{Node: "n1", Boot: "boot-1", Namespace: "kubediag", DataRoot: args[1], Client: s, Reader: s, Log: logr.Discard()})
	if err != nil {
		return err
	}
	k := killed{Recorder: r, pod: &corev1.Pod{}, point: args[3], recorded: make(chan struct{})}
	if err := json.Unmarshal([]byte(args[2]), k.pod); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // a role is no test
	defer cancel()
	var group sync.WaitGroup
	watcher := &sentinel.Sentinel{Mode: sentinel.Automatic, Guard: k, Kubelet: node, Pods: k, Observer: k, Begun: r.Begun()}
	if k.point != "" {
		ready("") // now, since it may be killed at once
	}
	group.Go(func() { err = watcher.Run(ctx) })
	if k.point != "" {
		group.Wait()
		return err
	}
	<-k.recorded
	cancel()
	group.Wait()
	if err == nil {
		err = r.Run(ctx)
	}
	ready("")
	return err
}

// TestKilledSentinelEndsTheSame kills the sentinel at each point of a repair, and has another one go on. The stale bind is replaced then,
// and has one record, with the decision that allowed it.
func TestKilledSentinelEndsTheSame(t *testing.T) {
	for point, later := range map[string]bool{"": false, "planned": false, "begun": false, "done": true, "proven": true, "added": true} {
		t.Run("at "+point, func(t *testing.T) {
			scene, pod, data := kubelettest.New(t), kubelettest.NewPod(), t.TempDir()
			app := &pod.Spec.Containers[0]
			app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: "configmap", MountPath: "/x", SubPath: "key"})
			place := scene.Point(pod, "configmap", app.Name, 0)
			version := scene.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
			scene.Bind(filepath.Join(version, "key"), place)
			scene.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
			stale, err := mount.Inspect(place)
			kerneltest.Must(t, err)
			text, err := json.Marshal(pod)
			kerneltest.Must(t, err)
			if point != "" {
				kerneltest.StartWith(t, nil, "sentinel", scene.Root, data, string(text), point).End()
			}
			kerneltest.StartWith(t, nil, "sentinel", scene.Root, data, string(text), "").End()

			if now, err := mount.Inspect(place); err != nil || now.Same(stale.ID) {
				t.Errorf("at the place: %+v, %v", now, err)
			}
			if content, err := os.ReadFile(place); err != nil || string(content) != "two" {
				t.Errorf("the bind has %q, %v", content, err)
			}
			if size, err := os.Stat(filepath.Join(data, journalFile)); err != nil || size.Size() != 0 {
				t.Errorf("a repair is open: %v", err)
			}
			records := left(t, data)
			if len(records) != 1 {
				t.Fatalf("records %q", records)
			}
			record := &v1.Diagnosis{}
			text, err = os.ReadFile(records[0])
			kerneltest.Must(t, err)
			kerneltest.Must(t, json.Unmarshal(text, record))
			if st := record.Status; st.Outcome != v1.OutcomeHealed || st.Decision.Reason != byPolicy.Reason ||
				strings.Contains(st.Summary, "an earlier process") != later {
				t.Errorf("record %+v", st)
			}
		})
	}
}
