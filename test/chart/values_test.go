// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/agent"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/manager"
)

const (
	root     = "../.."
	chartDir = root + "/charts/kubediag"
)

// schema is what the tests need of a JSON schema.
type schema struct {
	Type       any               `json:"type"`
	Ref        string            `json:"$ref"`
	Properties map[string]schema `json:"properties"`
}

func read[T any](t *testing.T, name string) (v T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, name))
	must(t, err)
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// TestCopyIsCurrent holds that each file that the chart has of config is the one there.
func TestCopyIsCurrent(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(filepath.Join(chartDir, "config"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(chartDir, path)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		want, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("charts/kubediag/%s is not %s: run make generate (%v)", name, name, err)
		}
		return nil
	})
	must(t, err)
}

// TestSchemaNamesTheValues holds that the schema allows each value of values.yaml, and that values.yaml shows each that it allows.
func TestSchemaNamesTheValues(t *testing.T) {
	t.Parallel()
	allowed := read[schema](t, "values.schema.json")
	delete(allowed.Properties, "global") // it is Helm's
	var compare func(at string, s schema, values map[string]any)
	compare = func(at string, s schema, values map[string]any) {
		if diff := cmp.Diff(slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(values))); diff != "" {
			t.Errorf("%s (-schema +values):\n%s", at, diff)
		}
		for name, below := range s.Properties {
			if inner, ok := values[name].(map[string]any); ok && below.Properties != nil && name != "flags" {
				compare(at+"."+name, below, inner)
			}
		}
	}
	compare("values", allowed, read[map[string]any](t, "values.yaml"))
}

// set are the flags that the manifests set, or that belong to what they set.
var set = []string{
	"help", "node-name", "pod-uid", "namespace", "data-root", "kubeconfig", "leader-elect", "health-probe-bind-address",
	"allow-eviction", "alert-bind-address", "metrics-protected",
}

// TestSchemaNamesTheFlags holds that agent.flags and manager.flags allow the flags of the programs, with their types.
func TestSchemaNamesTheFlags(t *testing.T) {
	t.Parallel()
	all := read[schema](t, "values.schema.json")
	for name, command := range map[string]*cobra.Command{"agent": agent.NewCommand(), "manager": manager.NewCommand()} {
		want := map[string]string{}
		command.Flags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(set, f.Name) {
				want[f.Name] = jsonType(f.Value.Type())
			}
		})
		got := map[string]string{}
		for flag, s := range all.Properties[name].Properties["flags"].Properties {
			got[flag], _ = s.Type.(string)
			if s.Ref == "#/definitions/duration" {
				got[flag] = "duration"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s.flags (-program +schema):\n%s", name, diff)
		}
	}
}

// jsonType is what the schema has for a type of pflag.
func jsonType(of string) string {
	switch of {
	case "bool":
		return "boolean"
	case "int":
		return "integer"
	case "duration":
		return of
	}
	return "string"
}

var must = kerneltest.Must
