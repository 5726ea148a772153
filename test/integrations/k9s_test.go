// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/cli/cluster"
)

// TestPluginsOfK9s holds that the fields are those of k9s, that the plugin knows each command, and that each one which changes something
// asks first. No name is a part of a script.
func TestPluginsOfK9s(t *testing.T) {
	t.Parallel()
	var file struct {
		Plugins map[string]struct {
			ShortCut    string   `json:"shortCut"`
			Description string   `json:"description"`
			Scopes      []string `json:"scopes"`
			Command     string   `json:"command"`
			Background  bool     `json:"background"`
			Confirm     bool     `json:"confirm"`
			Args        []string `json:"args"`
		} `json:"plugins"`
	}
	must(t, yaml.UnmarshalStrict(readFile(t, "k9s/plugins.yaml"), &file))
	variables := strings.NewReplacer("$COL-TARGET", "web", "$NAMESPACE", "shop", "$NAME", "web", "$CONTEXT", "prod")
	keys, verbs := map[string]bool{}, []string{}
	for name, p := range file.Plugins {
		for _, scope := range p.Scopes {
			if key := scope + " " + p.ShortCut; keys[key] || p.ShortCut == "" {
				t.Errorf("%s: key %q is taken", name, key)
			} else {
				keys[key] = true
			}
		}
		if p.Command != "sh" || p.Background || p.Description == "" || len(p.Args) < 6 || p.Args[0] != "-c" || strings.Contains(strings.ReplaceAll(p.Args[1], "$@", ""), "$") ||
			!slices.Equal(p.Args[2:5], []string{"sh", "kubectl", "kubediag"}) {
			t.Errorf("%s: %+v", name, p)
			continue
		}
		call := strings.Fields(variables.Replace(strings.Join(p.Args[5:], " ")))
		cmd, rest, err := cluster.NewCommand("kubectl-kubediag", call).Find(call)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || p.Confirm == slices.Contains(readOnly, cmd.Name()) || strings.Contains(strings.Join(call, " "), "$") {
			t.Errorf("%s: %q: error %v, asks first: %v", name, call, err, p.Confirm)
		}
		verbs = append(verbs, cmd.Name())
	}
	if slices.Sort(verbs); !slices.Equal(verbs, []string{"approve", "run", "run", "show"}) {
		t.Errorf("verbs %q", verbs)
	}
}

// TestViewsOfK9s holds that each view is of a kind of ours, and that each column is a field of its definition.
func TestViewsOfK9s(t *testing.T) {
	t.Parallel()
	var file struct {
		Views map[string]struct {
			SortColumn string   `json:"sortColumn"`
			Columns    []string `json:"columns"`
		} `json:"views"`
	}
	if err := yaml.UnmarshalStrict(readFile(t, "k9s/views.yaml"), &file); err != nil || len(file.Views) != 3 {
		t.Fatalf("%d views, %v", len(file.Views), err)
	}
	column := regexp.MustCompile(`^([A-Z]+)(?::((?:\.[a-zA-Z]+)+))?(?:\|[TW])?$`)
	for kind, view := range file.Views {
		parts := strings.Split(kind, "/")
		text, err := os.ReadFile("../../config/crd/" + parts[0] + "_" + parts[len(parts)-1] + ".yaml")
		if err != nil || len(parts) != 3 || parts[1] != "v1" {
			t.Fatalf("%s: %v", kind, err)
		}
		var names []string
		for _, c := range view.Columns {
			m := column.FindStringSubmatch(c)
			if m == nil {
				t.Errorf("%s: column %q", kind, c)
				continue
			}
			names = append(names, m[1])
			if field := m[2][strings.LastIndexByte(m[2], '.')+1:]; field != "" && !strings.Contains(string(text), "  "+field+":\n") {
				t.Errorf("%s: column %q: no such field", kind, c)
			}
		}
		if by, order, _ := strings.Cut(view.SortColumn, ":"); by != "" && (!slices.Contains(names, by) || order != "asc" && order != "desc") {
			t.Errorf("%s: sorts by %q", kind, view.SortColumn)
		}
	}
}
