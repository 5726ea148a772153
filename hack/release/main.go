// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command release packs the static programs of bin/<system>_<arch> for users: as container images, as the files of a release
// page, and into a registry. It needs no container engine, no cluster and no network.
//
//	release images    one archive per image and architecture, as docker save writes them, for make image
//	release pack      all files of a release, in dist/<version>
//	release push      the images and the chart of dist/<version>, to a registry
//
// The same programs and the same commit give the same bytes. All times are the epoch or the time of the commit. An image holds
// nothing but programs: no shell, no package manager, no certificates.
//
// go-containerregistry makes layers, indexes and archives, and kustomize makes install.yaml. ko would build the programs itself and
// fetch a base image from a registry. The module is that of the product, whose tests need go-containerregistry as well.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
)

// images are those of a release.
var images = []image{
	{
		name: "manager", binaries: []string{"manager"}, user: "65532:65532",
		description: "Binds each Diagnosis to its node and checks OperationSets. Needs no privilege.",
	},
	{
		name: "agent", binaries: []string{"agent", "kubediag"}, user: "0:0",
		description: "Runs diagnoses on its node and repairs mounts. Needs to be privileged, with the PID namespace of the host.",
	},
	{
		name: "cli", binaries: []string{"kubediag", "kubectl-kubediag"}, user: "0:0",
		description: "The command kubediag, for kubectl debug node. Needs to be privileged, with the PID namespace of the host.",
	},
}

// options are the flags.
type options struct {
	repository string // prefix of the name of an image in an archive, and in config/
	version    string // such as v0.2.0
	arches     []string
	bin, dist  string
	// registry and its path, such as registry.example.org/kubediag, have the images of the release. Empty: it has none.
	registry string
	// repoURL is the page below which the files of a release are found; empty: there is none.
	repoURL string
	// commit and its time, in RFC 3339, are the origin of the release.
	commit, date string
	signingKey   string // file of a private key in PEM; empty: nothing is signed
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run carries out one command line.
func run(ctx context.Context, args []string) error {
	verbs := map[string]func(context.Context, options) error{"images": packArchives, "pack": packRelease, "push": push}
	if len(args) == 0 || verbs[args[0]] == nil {
		return errors.New("the first argument must be images, pack or push")
	}
	var o options
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	arch := flags.String("arch", "amd64,arm64", "architectures of the images, by comma")
	flags.StringVar(&o.repository, "repository", "localhost/kubediag", "prefix of the name of an image in an archive")
	flags.StringVar(&o.version, "version", "", "version of the release and tag of the images, such as v0.2.0")
	flags.StringVar(&o.bin, "bin", "bin", "folder of the programs")
	flags.StringVar(&o.dist, "dist", "dist", "folder to write into")
	flags.StringVar(&o.registry, "registry", "", "registry of the images, with its path, such as registry.example.org/kubediag")
	flags.StringVar(&o.repoURL, "repo-url", "", "address of the repository's page")
	flags.StringVar(&o.commit, "commit", "", "commit of the release")
	flags.StringVar(&o.date, "date", "1970-01-01T00:00:00Z", "time of the commit, in RFC 3339")
	flags.StringVar(&o.signingKey, "signing-key", os.Getenv("KUBEDIAG_SIGNING_KEY"), "file of the ECDSA key, in PEM, that push signs with")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.arches = strings.Split(*arch, ",")
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(o.version) {
		return fmt.Errorf("-version is %q: it must be a version such as v0.2.0", o.version)
	}
	return verbs[args[0]](ctx, o)
}
