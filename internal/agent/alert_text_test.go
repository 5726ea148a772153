// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

// severities are the severities of the alerts that count faults, by name.
var severities = map[string]string{
	"VolumeBroken": "critical", "ContainerCannotStart": "warning", "WrongDirectory": "warning", "DeviceHeld": "warning", "PodCannotGo": "warning",
	"VolumesLeftBehind": "info", "MountsLeftBehind": "info",
}

// scrapeAgent gathers what an agent has, as Prometheus has it after a scrape: by name, with the labels of the target,
// and without those that are empty.
func scrapeAgent(t *testing.T) map[string][]map[string]string {
	t.Helper()
	all := map[string][]map[string]string{}
	for _, f := range exposedMetrics(t) {
		for _, m := range f.GetMetric() {
			labels := map[string]string{"job": "kubediag", "instance": "10.0.0.7:8080"}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
			all[f.GetName()] = append(all[f.GetName()], labels)
		}
	}
	return all
}

// form is what an expression of ours looks like: a selector, perhaps with a sum around it, joined with the node's name.
var form = regexp.MustCompile(`^(?:sum by \(([a-z, ]+)\) \()?(?:increase\()?(kubediag_[a-z_]+)(?:\{([^}]*)\})?(?:\[15m\]\))?\)? ` +
	`\* on \(cluster, job, instance\) group_left \(node\) kubediag_agent_info (?:>|==) \d+$`)

// matchingSeries are the labels that an expression gives for these samples.
func matchingSeries(t *testing.T, expr string, all map[string][]map[string]string) (found []map[string]string) {
	t.Helper()
	parts := form.FindStringSubmatch(expr)
	if parts == nil {
		t.Fatalf("the test does not understand %q", expr)
	}
	for _, labels := range all[parts[2]] {
		if !matchesSelector(labels, parts[3]) {
			continue
		}
		kept := maps.Clone(labels)
		if parts[1] != "" {
			maps.DeleteFunc(kept, func(name, _ string) bool { return !slices.Contains(strings.Split(parts[1], ", "), name) })
		}
		for _, info := range all["kubediag_agent_info"] {
			if info["job"] == kept["job"] && info["instance"] == kept["instance"] && info["node"] != "" {
				kept["node"] = info["node"]
				found = append(found, kept)
			}
		}
	}
	return found
}

func matchesSelector(labels map[string]string, selector string) bool {
	for _, m := range regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`).FindAllStringSubmatch(selector, -1) {
		is := labels[m[1]] == m[3]
		if m[2] == "=~" {
			is = regexp.MustCompile("^(?:" + m[3] + ")$").MatchString(labels[m[1]])
		}
		if is == (m[2] == "!=") {
			return false
		}
	}
	return true
}

// renderAnnotation fills an annotation in as Prometheus does, but that a label which is not there is an error. A query for the broken pods
// finds one.
func renderAnnotation(t *testing.T, text string, labels map[string]string, value float64) string {
	t.Helper()
	query := func(text string) []map[string]any {
		if !strings.Contains(text, fmt.Sprintf("code=%q", labels["code"])) {
			t.Errorf("%q asks about another code than %q", text, labels["code"])
		}
		return []map[string]any{{"Labels": map[string]string{"target_namespace": "shop", "target_pod": "web-0"}}}
	}
	parsed, err := template.New("").Option("missingkey=error").Funcs(template.FuncMap{"query": query}).Parse("{{$labels := .Labels}}{{$value := .Value}}" + text)
	must(t, err)
	var out strings.Builder
	labels = maps.Clone(labels)
	labels["cluster"] = "" // who collects several clusters adds it; else it is empty, as Prometheus has each label that is not there
	if err := parsed.Execute(&out, map[string]any{"Labels": labels, "Value": value}); err != nil {
		t.Errorf("%q of %v: %v", text, labels, err)
	}
	return out.String()
}

// TestAlertsSelectTheirCodes: an alert on faults selects the codes whose entries name it, and no others.
func TestAlertsSelectTheirCodes(t *testing.T) {
	t.Parallel()
	selected := regexp.MustCompile(`kubediag_faults\{code=~?"([^"]*)"\}`)
	got, want := map[string][]string{}, map[string][]string{}
	for _, r := range alertRules(t) {
		if match := selected.FindStringSubmatch(r.Expr); match != nil {
			got[r.Alert] = strings.Split(match[1], "|")
		}
	}
	for _, e := range fault.Known() {
		for _, alert := range e.Alerts {
			want[alert] = append(want[alert], string(e.Code))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alerts in config/alerts/kubediag.yaml do not select the codes of their entries (-want +got): run make generate\n%s", diff)
	}
	for _, code := range sentinel.Codes(fault.Known()) {
		if len(fault.Known().Entry(code).Alerts) == 0 {
			t.Errorf("%s is watched and has no alert: set Alerts of its entry", code)
		}
	}
}

// TestTextsOfAlerts has every alert fire for every sample that an agent can have.
func TestTextsOfAlerts(t *testing.T) {
	t.Parallel()
	all, got := scrapeAgent(t), map[fault.Code]string{}
	for _, r := range alertRules(t) {
		found := matchingSeries(t, r.Expr, all)
		if len(found) == 0 {
			t.Errorf("%s is on nothing that an agent has", r.Alert)
		}
		for _, labels := range found {
			one, many := renderAnnotation(t, r.Annotations["summary"], labels, 1), renderAnnotation(t, r.Annotations["summary"], labels, 12)
			if !strings.HasPrefix(one, "Node n1") || strings.Contains(one, "10.0.0.7") || strings.Contains(one, "1 mounts") ||
				strings.Contains(many, "12 mount ") || strings.HasSuffix(strings.TrimSpace(one), "repair") {
				t.Errorf("%s: %q, %q", r.Alert, one, many)
			}
			text := renderAnnotation(t, r.Annotations["description"], labels, 1)
			if asks := strings.Contains(r.Annotations["description"], "query"); text == "" || asks != strings.Contains(text, "kubectl kubediag ui pod/shop/web-0.") {
				t.Errorf("%s does not say what to do: %q", r.Alert, text)
			}
			if code := fault.Code(labels["code"]); code != "" {
				if before, twice := got[code]; twice {
					t.Errorf("%s is both %s and %s", code, before, r.Labels["severity"])
				}
				got[code] = r.Labels["severity"]
			}
		}
	}
	for _, code := range sentinel.Codes(fault.Known()) {
		entry := fault.Known().Entry(code)
		want := ""
		if len(entry.Alerts) > 0 { // the first is about one fault
			want = severities[entry.Alerts[0]]
		}
		if want == "" || got[code] != want || entry.Severity == fault.Warning && want == "critical" { // no pod that runs is hurt
			t.Errorf("%s has alerts %q with severity %q, want %q: see TestAlertsSelectTheirCodes", code, entry.Alerts, got[code], want)
		}
	}
	const want = "Node n1 has 1 mount with the fault HungMount"
	for _, r := range alertRules(t) {
		for _, labels := range matchingSeries(t, r.Expr, all) {
			if text := renderAnnotation(t, r.Annotations["summary"], labels, 1); labels["code"] == "HungMount" && text != want {
				t.Errorf("%q, want %q", text, want)
			}
		}
	}
}

// TestAddedFaultIsCounted from the start, for each of its actions.
func TestAddedFaultIsCounted(t *testing.T) {
	t.Parallel()
	kinds := []fault.ActionKind{fault.Evict}
	known := append(slices.Clone(fault.Known()), fault.Entry{Code: "AddedFault", Actions: kinds})
	if got := countedActions(known)["AddedFault"]; !slices.Equal(got, kinds) {
		t.Errorf("counted %q", got)
	}
}
