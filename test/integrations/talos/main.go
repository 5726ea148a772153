// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command talos makes the machine configuration of a new Talos cluster, with the patch of a file, as Talos itself does. It writes as JSON
// the mounts of the kubelet's container that the patch adds, and the admission plugins of the API server.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// container is the mode of a node for which a configuration is checked.
type container struct{}

func (container) String() string        { return "container" }
func (container) RequiresInstall() bool { return false }
func (container) InContainer() bool     { return true }

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(file string) error {
	input, err := generate.NewInput("test", "https://127.0.0.1:6443", constants.DefaultKubernetesVersion)
	if err != nil {
		return err
	}
	config, err := input.Config(machine.TypeControlPlane)
	if err != nil {
		return err
	}
	patches, err := configpatcher.LoadPatches([]string{"@" + file})
	if err != nil {
		return err
	}
	patched, err := configpatcher.Apply(configpatcher.WithConfig(config), patches)
	if err != nil {
		return err
	}
	text, err := patched.Bytes()
	if err != nil {
		return err
	}
	read, err := configloader.NewFromBytes(text)
	if err != nil {
		return err
	}
	if _, err := read.Validate(container{}); err != nil {
		return err
	}
	plugins := map[string]any{}
	for _, p := range read.Cluster().APIServer().AdmissionControl() {
		plugins[p.Name()] = p.Configuration()
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"mounts": read.Machine().Kubelet().ExtraMounts(), "plugins": plugins})
}
