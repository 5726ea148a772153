// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/version"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/lint"
)

// maxLintFiles bounds how many files the directories that are named may hold.
const maxLintFiles = 100_000

// NewLintCommand makes the verb lint.
func NewLintCommand() *cobra.Command {
	o := lintOptions{format: verb.Text}
	cmd := &cobra.Command{
		Use:   "lint -f FILE...",
		Short: "Find workloads at risk of a mount fault in manifests, and write the change that cures each",
		Long: "lint reads Pods, PodTemplates, Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and lists of\n" +
			"them, in YAML or JSON of one or more documents. It asks no cluster. Objects of other kinds are counted.\n\n" +
			"MutableSubPath: a subPath of a ConfigMap, Secret, projected or downwardAPI volume. A kubelet before 1.19 cannot\n" +
			"start such a container again after the content was updated: give --kubelet-version. HostPropagation: a mount of the host's directories of\n" +
			"volumes that does not follow what is unmounted there, so that devices stay held. FUSEPropagation: a mount that\n" +
			"another container or a driver fills, and that does not follow when it is mounted again. ReadOnlyMountPoint: a mount\n" +
			"below an emptyDir that is read-only and has no such directory. SingleFile: a file or socket of the host that the\n" +
			"container keeps when another takes its place. MountInside: a mount inside a volume that is Bidirectional.\n\n" +
			"Each change is printed as a strategic merge patch of the object.\n\n" +
			"Exit status: 0 no risks, 1 risks found, 2 something could not be read.",
		Example: "  kubediag lint -f manifests/\n" +
			"  helm template chart | kubediag lint -f - --kubelet-version 1.18\n" +
			"  kubediag lint -o github -f deploy/*.yaml",
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file, or directory with files that end in .yaml, .yml or .json; \"-\": standard input")
	f.StringVar(&o.version, "kubelet-version", "", "version of the kubelets, such as 1.18.20: before 1.19 a subPath is a risk\n(default: 1.19 or later)")
	f.StringVar(&o.root, "kubelet-root", "", "root directory of the kubelets (default /var/lib/kubelet)")
	verb.AddFormat(cmd, &o.format, "how to write: text, json, sarif, or github for the annotations of its workflows",
		`must be one of ["text" "json" "sarif" "github"]`, verb.Text, verb.JSON, sarifFormat, gitHubFormat)
	verb.CompleteFlag(cmd, "kubelet-version", func() []string {
		return []string{"1.18\tand before: with kubernetes#68211", "1.19\tand later: the kubelet renews such binds"}
	})
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is not there
	}
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		o.files = append(o.files, args...) // a shell makes several of -f *.yaml
		options, err := o.lintOptionsOf()
		if err != nil {
			return err
		}
		report, err := verb.Await(cmd.Context(), func() (*lintReport, error) {
			return o.readManifests(cmd.Context(), options, cmd.InOrStdin())
		})
		if err != nil {
			return err
		}
		return report.writeFindings(cmd.OutOrStdout(), o.format)
	})
	return cmd
}

// lintOptions are the flags of lint.
type lintOptions struct {
	files   []string
	version string
	root    string
	format  verb.Format
}

// lintOptionsOf turns the flags into options of the rules.
func (o *lintOptions) lintOptionsOf() (lint.Options, error) {
	options := lint.Options{KubeletRoot: o.root, KubeletVersion: lint.RenewsSubPaths}
	switch {
	case len(o.files) == 0:
		return options, errors.New("-f FILE is missing, see kubediag lint --help")
	case o.root != "" && checkAbsolute(o.root) != nil:
		return options, fmt.Errorf("--kubelet-root=%q: %w", o.root, checkAbsolute(o.root))
	case o.version != "":
		v, err := version.ParseGeneric(o.version)
		if err != nil {
			return options, fmt.Errorf("--kubelet-version=%q: must be a version such as 1.18 or v1.18.20", o.version)
		}
		options.KubeletVersion = v
	}
	return options, nil
}

// readManifests reads one file after the other. It fails if there is nothing to read.
func (o *lintOptions) readManifests(ctx context.Context, options lint.Options, stdin io.Reader) (*lintReport, error) {
	var m lint.Manifests
	report := &lintReport{SchemaVersion: schemaVersion, Findings: []lint.Located{}, Errors: []string{}}
	for _, name := range o.files {
		files, err := manifestFiles(name)
		report.addError(err)
		for _, file := range files {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			report.Looked.Files++
			if file == "-" {
				report.addError(m.Read("standard input", stdin))
				continue
			}
			f, err := os.Open(file)
			if err == nil {
				err = m.Read(file, f)
				f.Close()
			}
			report.addError(err)
		}
	}
	report.Looked.Workloads, report.Looked.PassedOver = len(m.Workloads), m.PassedOver
	if report.Looked.PassedOver == nil {
		report.Looked.PassedOver = map[string]int{}
	}
	if report.failed == nil && report.Looked.Workloads+len(m.PassedOver) == 0 {
		report.addError(fmt.Errorf("there is no object in %q", o.files))
	}
	report.Findings = append(report.Findings, m.Check(options)...)
	return report, nil
}

// manifestFiles are the files of a directory and of those in it, in order, or the one file itself. Links to directories
// are not followed.
func manifestFiles(name string) (files []string, err error) {
	st, err := os.Stat(name)
	if name == "-" || err == nil && !st.IsDir() {
		return []string{name}, nil
	}
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(name, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case len(files) >= maxLintFiles:
			return fmt.Errorf("%q has more than %d files", name, maxLintFiles)
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%q has no files that end in .yaml, .yml or .json", name)
	}
	return files, err
}
