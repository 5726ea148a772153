// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command diagnose runs an OperationSet of the samples in a virtual machine that has no API server: with the store in
// memory, and with the pipeline, the journal and the processors of the agent. It is for tests alone.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

func main() {
	subprocess.Main(registry.Jobs()...)
	var r run
	flag.StringVar(&r.data, "data", "/var/lib/kubediag", "directory for journals and full results; it is made")
	flag.StringVar(&r.kubeletRoot, "kubelet-root", "/var/lib/kubelet", "directory that the kubelet would have; empty: a kubelet runs and is found")
	flag.StringVar(&r.podsFile, "pods", "", "pods of the node, as a PodList in JSON")
	flag.StringVar(&r.pod, "pod", "", "the pod that the Diagnosis is about, as NAMESPACE/NAME")
	flag.DurationVar(&r.until, "until", 0, "run a Diagnosis every second, for so long at most, until one succeeds")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "diagnose: usage: diagnose [flags] OPERATIONSET [PARAMETER=VALUE]...")
		os.Exit(2)
	}
	if err := r.diagnose(context.Background(), flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "diagnose:", err)
		os.Exit(1)
	}
}

// run is what the flags say.
type run struct {
	data, kubeletRoot, podsFile, pod string
	until                            time.Duration
}

// diagnose runs a Diagnosis, or one after the other, with what processors remember, and writes the status of the last
// as JSON.
func (r run) diagnose(ctx context.Context, set string, parameters []string) error {
	var objects store.Memory
	if err := objects.Load(strings.NewReader(strings.Join([]string{operations.HeldDevice, operations.IdleDevice, operations.VolumeHealth}, "\n---\n"))); err != nil {
		return err
	}
	e, err := r.newRunner(&objects)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	values := map[string]string{}
	for _, p := range parameters {
		key, value, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("read parameter %q: want PARAMETER=VALUE", p)
		}
		values[key] = value
	}
	spec := v1.DiagnosisSpec{OperationSet: set, NodeName: nodeName, Parameters: values}
	if namespace, name, ok := strings.Cut(r.pod, "/"); ok {
		spec.PodReference = &v1.PodReference{Namespace: namespace, Name: name}
	}
	for start, n := time.Now(), 1; ; n++ {
		d, err := runOne(ctx, e, &objects, fmt.Sprintf("run-%d", n), spec)
		if err != nil {
			return err
		}
		if d.Status.Phase == v1.DiagnosisSucceeded || time.Since(start) > r.until {
			return json.NewEncoder(os.Stdout).Encode(d.Status)
		}
		time.Sleep(time.Second)
	}
}

const nodeName = "vm"

// patience is how long a file system has to answer: an emulated machine is slow.
const patience = 30 * time.Second

func (r run) newRunner(objects pipeline.Store) (*pipeline.Runner, error) {
	if err := os.MkdirAll(r.data, 0o700); err != nil {
		return nil, err
	}
	node, err := r.kubelet()
	if err != nil {
		return nil, err
	}
	known, err := readPods(r.podsFile)
	if err != nil {
		return nil, err
	}
	runtime := &cri.Client{Socket: func(ctx context.Context) (string, error) {
		n, err := node.Node(ctx)
		if err != nil {
			return "", err
		}
		return n.RuntimeSocket(ctx)
	}}
	registry, err := registry.New(registry.Deps{Pods: known, Kubelet: node, Volumes: &volume.Inspector{
		Kubelet: node, Prober: &probe.Prober{Deadline: patience}, Runtime: runtime, Pods: known, Runner: &subprocess.Runner{},
	}})
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Options{Node: nodeName, DataRoot: r.data, Registry: registry, Store: objects})
}

func runOne(ctx context.Context, e *pipeline.Runner, objects *store.Memory, name string, spec v1.DiagnosisSpec) (*v1.Diagnosis, error) {
	manifest, err := sigsyaml.Marshal(&v1.Diagnosis{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: spec,
	})
	if err != nil {
		return nil, err
	}
	if err := objects.Load(strings.NewReader(string(manifest))); err != nil {
		return nil, err
	}
	d, err := objects.Diagnosis(metav1.NamespaceDefault, name)
	if err != nil {
		return nil, err
	}
	return e.Run(ctx, d)
}

// kubelet is the one that runs, or a directory without one.
func (r run) kubelet() (kubelet.Locator, error) {
	if r.kubeletRoot == "" {
		return &kubelet.Finder{}, nil
	}
	return kubelet.Local(r.kubeletRoot)
}

// pods are those of the node that are known.
type pods []corev1.Pod

func readPods(name string) (pods, error) {
	if name == "" {
		return nil, nil
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("read pods in %q: %w", name, err)
	}
	return list.Items, nil
}

func (p pods) find(is func(*corev1.Pod) bool) *corev1.Pod {
	for i := range p {
		if is(&p[i]) {
			return &p[i]
		}
	}
	return nil
}

func (p pods) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := p.find(func(pod *corev1.Pod) bool { return pod.Namespace == namespace && pod.Name == name })
	if pod == nil {
		return nil, fmt.Errorf("get pod %q: %w", namespace+"/"+name, pipeline.ErrNotFound)
	}
	return pod, nil
}

func (p pods) PodByUID(uid string) *corev1.Pod {
	return p.find(func(pod *corev1.Pod) bool { return string(pod.UID) == uid })
}
