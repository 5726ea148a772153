// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

func newReportCommand(conn *connection) *cobra.Command {
	var out *verb.Format
	var dir string
	cmd := &cobra.Command{
		Use:   "report NAME",
		Short: "Write the whole story of a Diagnosis, for a ticket",
		Long: "report writes all that a Diagnosis says: the question, the findings with their evidence, the plan, what was done, and the\n" +
			"proof. In JSON and YAML, it is the Diagnosis itself. On a terminal it writes one screen, and the command for the\n" +
			"whole report, which -o markdown shows.\n\n" +
			"With --artifacts, it writes the artifacts of a Diagnosis into a directory: the mount table of the node, and the Pod. They are in\n" +
			"a Diagnosis that was made by run --artifacts. Credentials are taken out.",
		Example:           "  kubectl kubediag report web-x2x9k-4k2fd -n shop > ticket.md",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(conn.resourceNames(diagnosisKind)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := conn.newClient()
			if err != nil {
				return err
			}
			diagnosis := &v1.Diagnosis{}
			if err := client.server.Get(cmd.Context(), client.keyOf(args[0]), diagnosis); err != nil {
				return err
			}
			if dir != "" {
				return saveArtifacts(cmd, client, diagnosis, dir)
			}
			if *out == verb.JSON || *out == verb.YAML {
				return newPrinter(*out, "Diagnosis").printObject(cmd.OutOrStdout(), diagnosis)
			}
			if screen := screenOf(cmd); screen.Terminal && *out == formatText {
				return verb.Write(cmd.OutOrStdout(), client.reportSummary(screen, diagnosis))
			}
			return verb.Write(cmd.OutOrStdout(), render.Report(diagnosis))
		},
	}
	cmd.Flags().StringVar(&dir, "artifacts", "", "write the artifacts into this directory, which must be new or empty, and no report")
	out = addFormat(cmd, formatMarkdown, verb.JSON, verb.YAML)
	return cmd
}

// reportSummary is the Diagnosis on one screen, with the command that writes all of it into a file.
func (c *client) reportSummary(screen terminal.Screen, d *v1.Diagnosis) string {
	w := newStory(screen, d)
	whole := terminal.Hint{
		Line:    c.commandLine("report", d.Name, "-n", d.Namespace) + " > " + d.Name + ".md",
		Purpose: "writes the whole report: " + verb.Count(strings.Count(render.Report(d), "\n"), "line"),
	}
	return w.headline(d.Spec.Target()+", Diagnosis "+d.Namespace+"/"+d.Name) + w.newsText(d) + screen.Text("\n"+screen.Hints([]terminal.Hint{whole}, nil))
}

// maxArtifactBytes bounds the size of an unpacked copy, in bytes. An agent copies no larger file.
const maxArtifactBytes = 64 << 20

// invalidFileCharacters is all that may not be in the name of a file.
var invalidFileCharacters = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// saveArtifacts writes the copies in a Diagnosis into a directory. It writes over no file.
func saveArtifacts(cmd *cobra.Command, apiClient *client, diagnosis *v1.Diagnosis, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--artifacts=%q: %w", dir, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return errors.Join(fmt.Errorf("--artifacts=%q: must be a new directory, or an empty one", dir), err)
	}
	saved := 0
	for i := range diagnosis.Status.Artifacts {
		a := &diagnosis.Status.Artifacts[i]
		if len(a.Content) == 0 {
			line := fmt.Sprintf("%s is only on node %s: %s\n", a.Key, diagnosis.Spec.NodeName, a.Path)
			if err := verb.Write(cmd.ErrOrStderr(), printable.Text(line)); err != nil {
				return err
			}
			continue
		}
		name := filepath.Join(dir, fmt.Sprintf("%d-%.100s", i+1, invalidFileCharacters.ReplaceAllString(a.Key, "_")))
		if err := unpackFile(a.Content, name); err != nil {
			return fmt.Errorf("artifact %s: %w", a.Key, err)
		}
		saved++
		if err := verb.Write(cmd.OutOrStdout(), printable.Text(name+"\n")); err != nil {
			return err
		}
	}
	if saved == 0 {
		return fmt.Errorf("diagnosis %s/%s has no copies of artifacts: make one that has them: %s", diagnosis.Namespace, diagnosis.Name,
			apiClient.commandLine("run", "pod/NAME", "--heal=never", "--artifacts"))
	}
	return nil
}

// unpackFile writes a new file with the content, unpacked.
func unpackFile(content []byte, name string) error {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxArtifactBytes+1))
	if n > maxArtifactBytes {
		err = fmt.Errorf("unpack: it is larger than %d bytes", maxArtifactBytes)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
