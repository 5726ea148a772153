// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

// Package upgrade_test installs our CustomResourceDefinitions over earlier ones, with objects in them. Those of KubeDiag are
// of apiextensions.k8s.io/v1beta1, so it takes a server of 1.18: it stores them with preserveUnknownFields.
package upgrade_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

const crds = "/apis/apiextensions.k8s.io/"

// TestUpgrade has each release of KubeDiag be replaced.
func TestUpgrade(t *testing.T) {
	s := &server{T: t, env: apitest.StartOld(t)}
	for _, version := range []string{"v0.2.0", "v0.3.1"} {
		t.Run(version, func(t *testing.T) {
			s.T = t
			s.removeCRDs()
			stored := s.install(version)
			withDefaults := 0
			for name, crd := range s.ours() {
				if status, _ := s.ask(http.MethodGet, crds+"v1/customresourcedefinitions/"+name, nil); status == http.StatusNotFound {
					s.must(http.MethodPost, crds+"v1/customresourcedefinitions", crd) // a kind that KubeDiag does not have
					continue
				}
				if s.refused(name, crd) {
					withDefaults++
				}
				s.must(http.MethodPatch, crds+"v1/customresourcedefinitions/"+name, crd)
			}
			if withDefaults == 0 {
				t.Error("no definition has defaults: the test does not play what users meet")
			}
			s.pruned()
			for _, want := range stored {
				s.kept(want)
			}
		})
	}
}

// server is an API server, asked as kubectl does.
type server struct {
	*testing.T
	env *apitest.Env
}

// ask sends an object, and gives the answer and its status.
func (s *server) ask(method, path string, object map[string]any) (int, string) {
	s.Helper()
	c, err := rest.HTTPClientFor(s.env.Config)
	kerneltest.Must(s, err)
	body, err := json.Marshal(object)
	kerneltest.Must(s, err)
	r, err := http.NewRequestWithContext(s.Context(), method, s.env.Config.Host+path, bytes.NewReader(body))
	kerneltest.Must(s, err)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.Do(r)
	kerneltest.Must(s, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	kerneltest.Must(s, err)
	return answer.StatusCode, string(text)
}

func (s *server) must(method, path string, object map[string]any) {
	s.Helper()
	if status, text := s.ask(method, path, object); status >= 300 {
		s.Fatalf("%s %s: %d %s", method, path, status, text)
	}
}

// removeCRDs leaves the server as it is before anything is installed.
func (s *server) removeCRDs() {
	for name := range s.ours() {
		path := crds + "v1/customresourcedefinitions/" + name
		s.must(http.MethodDelete, path, nil)
		apitest.Eventually(s, func() error {
			if status, text := s.ask(http.MethodGet, path, nil); status != http.StatusNotFound {
				return fmt.Errorf("%s is still there: %d %s", name, status, text)
			}
			return nil
		})
	}
}

// ours reads config/crd, by name.
func (s *server) ours() map[string]map[string]any {
	s.Helper()
	files, err := filepath.Glob("../../../config/crd/" + v1.Group + "_*.yaml")
	if err != nil || len(files) != 7 {
		s.Fatalf("found %q, %v", files, err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		kerneltest.Must(s, err)
		crd := &unstructured.Unstructured{}
		kerneltest.Must(s, yaml.Unmarshal(text, &crd.Object))
		all[crd.GetName()] = crd.Object
	}
	return all
}

// install brings in a release of KubeDiag, and gives its objects as they are stored.
func (s *server) install(version string) (stored []*unstructured.Unstructured) {
	s.Helper()
	text, err := os.ReadFile("testdata/" + version + ".yaml")
	kerneltest.Must(s, err)
	for _, object := range apitest.Objects(s, string(text)) {
		if object.GetKind() == "CustomResourceDefinition" {
			s.must(http.MethodPost, "/apis/"+object.GetAPIVersion()+"/customresourcedefinitions", object.Object)
			continue
		}
		apitest.Eventually(s, func() error { // a kind is served a moment after it is defined
			if status, text := s.ask(http.MethodPost, strings.TrimSuffix(pathOf(object), "/"+object.GetName()), object.Object); status != http.StatusCreated {
				return fmt.Errorf("creating %s %s: %d %s", object.GetKind(), object.GetName(), status, text)
			}
			return nil
		})
		if status, ok := object.Object["status"]; ok && object.GetKind() != "MountFault" { // of which it is no subresource
			s.must(http.MethodPatch, pathOf(object)+"/status", map[string]any{"status": status})
		}
		stored = append(stored, s.get(object))
	}
	return stored
}

func pathOf(object *unstructured.Unstructured) string {
	plural := map[string]string{"Diagnosis": "diagnoses", "RecoveryPolicy": "recoverypolicies"}[object.GetKind()]
	if plural == "" {
		plural = strings.ToLower(object.GetKind()) + "s"
	}
	path := "/apis/" + v1.Group + "/v1/"
	if object.GetNamespace() != "" {
		path += "namespaces/" + object.GetNamespace() + "/"
	}
	return path + plural + "/" + object.GetName()
}

func (s *server) get(object *unstructured.Unstructured) *unstructured.Unstructured {
	s.Helper()
	status, text := s.ask(http.MethodGet, pathOf(object), nil)
	if status != http.StatusOK {
		s.Fatalf("getting %s: %d %s", pathOf(object), status, text)
	}
	now := &unstructured.Unstructured{}
	kerneltest.Must(s, json.Unmarshal([]byte(text), &now.Object))
	return now
}

// refused makes sure that without the field a definition with defaults is not taken. It reports whether this one has any.
func (s *server) refused(name string, crd map[string]any) bool {
	s.Helper()
	without := (&unstructured.Unstructured{Object: crd}).DeepCopy()
	unstructured.RemoveNestedField(without.Object, "spec", "preserveUnknownFields")
	text, err := json.Marshal(without.Object)
	kerneltest.Must(s, err)
	if !strings.Contains(string(text), `"default":`) {
		return false
	}
	status, answer := s.ask(http.MethodPatch, crds+"v1/customresourcedefinitions/"+name+"?dryRun=All", without.Object)
	if status != http.StatusUnprocessableEntity || !strings.Contains(answer, "must be false in order to use defaults in the schema") {
		s.Errorf("%s without preserveUnknownFields: %d %s", name, status, answer)
	}
	return true
}

// pruned waits until our definitions are in force: what they do not name is dropped, and defaults are filled in.
func (s *server) pruned() {
	s.Helper()
	probe := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "Operation", "metadata": map[string]any{"name": "pruned"},
		"spec": map[string]any{"processor": map[string]any{"path": "/processor/mountInfoCollector"}, "unknown": "x"},
	}}
	apitest.Eventually(s, func() error {
		s.must(http.MethodPost, strings.TrimSuffix(pathOf(probe), "/pruned"), probe.Object)
		now := s.get(probe).Object["spec"]
		s.must(http.MethodDelete, pathOf(probe), nil)
		want := map[string]any{"processor": map[string]any{"path": "/processor/mountInfoCollector", "timeoutSeconds": 30.}}
		if diff := cmp.Diff(want, now); diff != "" {
			return fmt.Errorf("spec (-want +got):\n%s", diff)
		}
		return nil
	})
}

// kept makes sure that an object has all that it had, is read by our types, and can be written.
func (s *server) kept(want *unstructured.Unstructured) {
	s.Helper()
	now := s.get(want)
	for _, part := range []string{"spec", "status"} {
		if diff := cmp.Diff(want.Object[part], now.Object[part]); diff != "" {
			s.Errorf("%s of %s (-want +got):\n%s", part, pathOf(want), diff)
		}
	}
	if err := s.env.ReadTyped(s.Context(), want); err != nil {
		s.Error(err)
	}
	s.must(http.MethodPatch, pathOf(want), map[string]any{"metadata": map[string]any{"labels": map[string]any{"written": "again"}}})
}
