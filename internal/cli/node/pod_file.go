// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/manifests"
)

// maxPodFile bounds a file of pods, in bytes: a cluster of 5,000 pods gives half of it.
const maxPodFile = 64 << 20

// podFile has the pods of a file, by UID. It is nil without a file.
type podFile map[string]*corev1.Pod

// readPods reads the file, or stdin if it is "-".
func readPods(ctx context.Context, file string, stdin io.Reader) (podFile, error) {
	pods, err := readInput(ctx, file, stdin, parsePods)
	if err != nil {
		return nil, fmt.Errorf("read pods from %q (--pods): %w", file, err)
	}
	return pods, nil
}

// readInput has read take in a file, or stdin if it is "-".
func readInput[T any](ctx context.Context, file string, stdin io.Reader, read func(io.Reader) (T, error)) (T, error) {
	return verb.Await(ctx, func() (value T, err error) {
		if file == "-" {
			return read(stdin)
		}
		f, err := os.Open(file)
		if err != nil {
			return value, err
		}
		defer f.Close()
		return read(f)
	})
}

// parsePods takes JSON, or YAML of one or more documents.
func parsePods(r io.Reader) (podFile, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxPodFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxPodFile {
		return nil, fmt.Errorf("it is larger than %d MiB", maxPodFile>>20)
	}
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, errors.New("it is empty")
	}
	pods := podFile{}
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		return pods, pods.addDocument(content)
	}
	for document, err := range manifests.Documents(content) {
		var text []byte
		if err == nil {
			text, err = sigsyaml.YAMLToJSON(document.Text)
		}
		if err == nil {
			err = pods.addDocument(text)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", document.Number, err)
		}
	}
	return pods, nil
}

// addDocument takes in a document of JSON: a pod, or a list of pods, whose items need no kind where the list has it.
func (p podFile) addDocument(document []byte) error {
	if document = bytes.TrimSpace(document); !bytes.HasPrefix(document, []byte("{")) {
		return fmt.Errorf("it begins with %.20q: must be a Pod, PodList or List, as \"kubectl get pods -A -o json\" prints it", document)
	}
	var list struct {
		APIVersion string               `json:"apiVersion"`
		Kind       string               `json:"kind"`
		Items      []stdjson.RawMessage `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(document, &list); err != nil {
		return err
	}
	if list.APIVersion != "v1" {
		return fmt.Errorf("apiVersion: %q: must be \"v1\"", list.APIVersion)
	}
	switch list.Kind {
	case "Pod":
		return p.addPod(document, "")
	case "PodList":
		list.Kind = "Pod"
	case "List":
		list.Kind = ""
	default:
		return fmt.Errorf("kind: %q: must be Pod, PodList or List", list.Kind)
	}
	for i, item := range list.Items {
		if err := p.addPod(item, list.Kind); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return nil
}

// addPod takes in one pod. kind is the kind of an object that does not say its own. If two pods have one UID, neither
// is believed.
func (p podFile) addPod(document []byte, kind string) error {
	pod := &corev1.Pod{}
	pod.Kind = kind
	if err := json.UnmarshalCaseSensitivePreserveInts(document, pod); err != nil {
		return err
	}
	if pod.Kind != "Pod" {
		return fmt.Errorf("kind: %q: must be Pod", pod.Kind)
	}
	uid := string(pod.UID)
	if uid == "" {
		return fmt.Errorf("pod %q has no metadata.uid: it does not come from an API server", pod.Namespace+"/"+pod.Name)
	}
	if _, twice := p[uid]; twice {
		pod = nil
	}
	p[uid] = pod
	return nil
}

// PodByUID returns the pod of the file; nil if it has none.
func (p podFile) PodByUID(uid string) *corev1.Pod { return p[uid] }

// Listed are the pods of the file whose UID no other has.
func (p podFile) Listed() []*corev1.Pod {
	return slices.DeleteFunc(slices.Collect(maps.Values(p)), func(pod *corev1.Pod) bool { return pod == nil })
}

// PodsNow lists the pods of the file.
func (p podFile) PodsNow(context.Context) ([]metav1.ObjectMeta, error) {
	all := make([]metav1.ObjectMeta, 0, len(p))
	for _, pod := range p {
		all = append(all, pod.ObjectMeta)
	}
	return all, nil
}
