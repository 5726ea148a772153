// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// NewFeaturesCommand makes the verb features.
func NewFeaturesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "features",
		Short: "Show the features of this kernel, and how kubediag uses them",
		Long: "features tries each kernel feature that kubediag can use, on any version of the kernel.\n" +
			"\"no\" names the first mainline kernel that has it. \"failed\": the feature could not be tested, mostly for lack of\n" +
			"a privilege. features changes nothing and exits with 0.",
		Args: verb.NoArgs,
	}
	out := addFormat(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r := probeFeatures(sys.Features())
		return render.Write(cmd.OutOrStdout(), *out, r, r.writeText)
	}
	return cmd
}

// featureReport is the output of the verb features.
type featureReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Kernel is the release of the running kernel, OldestKernel the oldest version that is tested.
	Kernel       string          `json:"kernel"`
	OldestKernel string          `json:"oldestKernel"`
	Features     []featureAnswer `json:"features"`
	Backends     []chosenBackend `json:"backends"`
}

// featureAnswer is the answer of one probe.
type featureAnswer struct {
	Name string `json:"name"`
	// Answer is "yes", "no" or "failed".
	Answer string `json:"answer"`
	// MinimumKernel is the first mainline version that has it.
	MinimumKernel string `json:"minimumKernel"`
	// Without is the way that kubediag takes if it is missing.
	Without string `json:"without"`
	// Error is why the answer is "failed".
	Error string `json:"error,omitempty"`
}

// chosenBackend is the way that is taken for one purpose.
type chosenBackend struct {
	Purpose string `json:"purpose"`
	Backend string `json:"backend"`
	Means   string `json:"means"`
}

func probeFeatures(features []*sys.Feature) featureReport {
	r := featureReport{SchemaVersion: schemaVersion, Kernel: sys.Release(), OldestKernel: sys.OldestKernel}
	r.Backends = chosenBackends((*sys.Feature).Probe)
	for _, f := range features {
		a := featureAnswer{Name: f.Name, MinimumKernel: f.Kernel, Without: f.Without}
		switch err := f.Probe(); {
		case err == nil:
			a.Answer = "yes"
		case errors.Is(err, errors.ErrUnsupported):
			a.Answer = "no"
		default:
			if failed, ok := errors.AsType[*sys.ProbeError](err); ok {
				err = failed.Err // the name is beside it
			}
			a.Answer, a.Error = "failed", err.Error()
		}
		r.Features = append(r.Features, a)
	}
	return r
}

// chosenBackends lists the backends that packages mountns and mount choose by the features of the kernel. If a feature is
// unknown, this caller uses the backend without it, and another caller may use the other.
func chosenBackends(probe func(*sys.Feature) error) []chosenBackend {
	choose := func(purpose string, yes, no chosenBackend, needs ...*sys.Feature) chosenBackend {
		refused := false
		for _, f := range needs {
			switch err := probe(f); {
			case errors.Is(err, errors.ErrUnsupported):
				no.Purpose = purpose
				return no
			case err != nil:
				refused = true
			}
		}
		if refused {
			return chosenBackend{purpose, "unknown", "it could not be tried out: " + asRootRemedy}
		}
		yes.Purpose = purpose
		return yes
	}
	return []chosenBackend{
		choose("mount namespaces",
			chosenBackend{Backend: "kernel", Means: "all of them are walked over, also those without a process"},
			chosenBackend{Backend: "procfs", Means: "those of processes, threads, descriptors and named files; mounts are read from /proc/PID/mountinfo"},
			sys.HasNamespaceWalk, sys.HasNamespaceID),
		choose("mount identity",
			chosenBackend{Backend: "kernel", Means: "by an id that is never used again"},
			chosenBackend{Backend: "mountinfo", Means: "by number, parent, root, point and device together"},
			sys.HasStatmount),
		choose("unmount",
			chosenBackend{Backend: "kernel", Means: "through a descriptor of the mount; its id is compared before and after"},
			chosenBackend{Backend: "mountinfo", Means: "through a descriptor of the mount; the mount table is compared before and after"},
			sys.HasStatmount),
		choose("live swap",
			chosenBackend{Backend: "kernel", Means: "a mount can be replaced under a running container, by one call"},
			choose("",
				chosenBackend{Backend: "propagation", Means: "a mount can be replaced under a running container: the new one spreads to it from a copy of its parent"},
				chosenBackend{Backend: "none", Means: "a mount cannot be replaced under a running container: it is restarted"},
				sys.HasMountTrees),
			sys.HasMountTrees, sys.HasMoveBeneath),
	}
}

func (r featureReport) writeText(s terminal.Screen) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Linux %s; kubediag is tested on %s and later\n\n", printable.Quoted(r.Kernel), r.OldestKernel)
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FEATURE\tHERE\tSINCE KERNEL")
	for _, a := range r.Features {
		fmt.Fprintf(t, "%s\t%s\t%s\n", a.Name, a.Answer, a.MinimumKernel)
	}
	_ = t.Flush() // into memory
	var notes []string
	for _, a := range r.Features {
		if a.Answer == "no" {
			notes = append(notes, s.Wrap("", fmt.Sprintf("without %s: %s", a.Name, a.Without), 2))
		}
		if a.Error != "" {
			notes = append(notes, s.Wrap("", printable.Quoted(a.Name+": "+a.Error), 2))
		}
	}
	backends := "\n" // a table of the ways that are taken
	all := append([]chosenBackend{{"FOR", "BACK END", "WHICH MEANS"}}, r.Backends...)
	purpose, backend := 0, 0 // the widths
	for _, e := range all {
		purpose, backend = max(purpose, len(e.Purpose)), max(backend, len(e.Backend))
	}
	for _, e := range all {
		before := terminal.Pad(e.Purpose, purpose) + "  " + terminal.Pad(e.Backend, backend) + "  "
		backends += s.Wrap(before, e.Means, len(before))
	}
	text.WriteString(s.FitParts(notes, strings.Count(text.String()+backends, "\n"), func(n int) string { return fmt.Sprintf("and %d more: -o json\n", n) }))
	return text.String() + backends
}
