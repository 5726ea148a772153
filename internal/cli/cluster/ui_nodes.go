// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/ui"
)

// maxTiles bounds the nodes of the map. Those with faults come first.
const maxTiles = 400

// nodesPage is a map of all nodes.
func (s *pageServer) nodesPage(r *http.Request) (ui.Page, error) {
	found, err := s.readFaults(r.Context(), "")
	if err != nil {
		return ui.Page{}, err
	}
	p := ui.Page{Title: "kubediag: " + s.options.status.language.Word("Nodes"), Made: time.Now()}
	names, unwatched, err := watchCheck{api: s.api, home: s.options.status.home}.nodesAndAgents(r.Context())
	if err != nil {
		p.Notes = append(p.Notes, fmt.Sprintf("It is not known which nodes are watched: %v", err))
	}
	byNode := map[string][]*v1.MountFault{}
	for _, f := range found {
		byNode[f.Status.Node] = append(byNode[f.Status.Node], f)
		if !slices.Contains(names, f.Status.Node) && len(byNode[f.Status.Node]) == 1 {
			names = append(names, f.Status.Node)
		}
	}
	var tiles []ui.Tile
	for _, name := range names {
		tiles = append(tiles, nodeTile(name, byNode[name], unwatched, err == nil))
	}
	slices.SortFunc(tiles, func(a, b ui.Tile) int { return cmp.Or(a.State.Rank()-b.State.Rank(), cmp.Compare(a.Name, b.Name)) })
	p.State, p.Verdict = ui.Good, fmt.Sprintf("No fault is known on %s, and each is watched in full.", verb.Count(len(tiles), "node"))
	if len(byNode) > 0 {
		p.State, p.Verdict = ui.Bad, fmt.Sprintf("%d of %s with faults; %d not watched in full.", len(byNode), verb.Count(len(tiles), "node"), len(unwatched))
	} else if err != nil || len(unwatched) > 0 {
		p.State, p.Verdict = ui.Warn, fmt.Sprintf("No fault is known, but of %s, %d are not watched in full.", verb.Count(len(tiles), "node"), len(unwatched))
	}
	tiles, more := ui.First(tiles, maxTiles, " nodes, none of them worse than these")
	p.Notes = append(p.Notes, more...)
	p.Sections = []ui.Section{{Heading: s.options.status.language.Word("Nodes"), Tiles: tiles}}
	return p, nil
}

// nodeTile is a node on the map. known is set if it is known which nodes are watched.
func nodeTile(name string, found []*v1.MountFault, unwatched map[string]string, known bool) ui.Tile {
	tile := ui.Tile{Link: path.Join("/node", name), Name: name}
	switch why := unwatched[name]; {
	case len(found) > 0:
		slices.SortFunc(found, compareFaults)
		impact := fault.Impact(found[0].Status.Impact)
		tile.State, tile.Text = ui.StateOf(verb.Colours[impact]), verb.Count(len(found), "fault")+": "+verb.Hurts[impact]
		if why != "" {
			tile.Text += "; " + why
		}
	case why != "":
		tile.State, tile.Text = ui.Warn, why
	case known:
		tile.State, tile.Text = ui.Good, "no fault known"
	}
	return tile
}

// readFaults reads the faults of a node, or all of them, the worst first.
func (s *pageServer) readFaults(ctx context.Context, node string) ([]*v1.MountFault, error) {
	options := []ctrlclient.ListOption{ctrlclient.InNamespace(s.namespace)}
	if node != "" {
		options = append(options, ctrlclient.MatchingLabels{v1.LabelNode: v1.NodeLabelValue(node)})
	}
	return s.api.listFaults(ctx, func(f *v1.MountFault) bool { return node == "" || f.Status.Node == node }, options...)
}

// nodePage is a node with the volumes of its pods, right and wrong.
func (s *pageServer) nodePage(r *http.Request) (ui.Page, error) {
	node, language := r.PathValue("name"), s.options.status.language
	found, err := s.readFaults(r.Context(), node)
	if err != nil {
		return ui.Page{}, err
	}
	problems, err := watchCheck{api: s.api, home: s.options.status.home, node: node}.problems(r.Context())
	if err != nil {
		return ui.Page{}, err
	}
	p := ui.Page{Title: "kubediag: node " + node, Made: time.Now(), State: ui.Good, Verdict: "No fault is known of node " + node + ", and it is watched.", Notes: problemTexts(problems)}
	switch {
	case len(found) > 0:
		p.State, p.Verdict = ui.Bad, verdictText(found, "node "+node)
	case len(problems) > 0:
		p.State, p.Verdict = ui.Warn, "No fault is known of node "+node+", but that counts only for what was looked at."
	}
	s.addFaults(&p, found, "-A", "--node="+node)
	links := ui.Section{Heading: language.Word("Links"), Table: ui.Table{Columns: []string{"POD", "VOLUME", "SOURCE", "CONTAINERS", "STATE"}}}
	var pods corev1.PodList
	switch err := s.api.server.List(r.Context(), &pods, ctrlclient.InNamespace(s.namespace), ctrlclient.MatchingFields{"spec.nodeName": node}); {
	case errors.Is(err, verb.ErrRefused):
		links.Text = []string{"not known: you may not list pods in " + placeText(s.namespace)}
	case err != nil:
		return ui.Page{}, err
	default:
		right := "no fault known"
		if len(problems) > 0 {
			right = "not known"
		}
		links.Table.Rows = linkRows(pods.Items, found, right)
		links.Text = []string{fmt.Sprintf("%s of pods, with the mounts that their containers ask for", verb.Count(len(links.Table.Rows), "volume"))}
		rows, more := ui.First(links.Table.Rows, maxPageRows, ", none of them with a fault that is known")
		links.Table.Rows, links.Text = rows, append(links.Text, more...)
	}
	p.Sections = append(p.Sections, links)
	return p, nil
}

// linkRows has a row for each volume of the pods that have not ended, those with faults first. right is said of the others.
func linkRows(pods []corev1.Pod, found []*v1.MountFault, right string) (rows []ui.Row) {
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, v := range p.Spec.Volumes {
			row := ui.Row{
				State: ui.Good, Link: path.Join("/pod", p.Namespace, p.Name),
				Cells: []string{p.Namespace + "/" + p.Name, v.Name, volumeSource(p, v), containersOf(p, v.Name), right},
			}
			if right != "no fault known" {
				row.State = ""
			}
			claim := claimOf(p, v)
			if worst := slices.IndexFunc(found, func(f *v1.MountFault) bool {
				of := f.Status
				return of.Pod != nil && of.Pod.Namespace == p.Namespace && of.Pod.Name == p.Name && (of.Volume == v.Name || claim != "" && of.Claim == claim)
			}); worst >= 0 {
				of := found[worst].Status
				impact := fault.Impact(of.Impact)
				row.State, row.Cells[4], row.Below = ui.StateOf(verb.Colours[impact]), of.Code+": "+verb.Hurts[impact], of.Summary
			}
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b ui.Row) int {
		return cmp.Or(a.State.Rank()-b.State.Rank(), cmp.Compare(a.Cells[0], b.Cells[0]))
	})
	return rows
}

// volumeSource names the source of a volume in a few words.
func volumeSource(p *corev1.Pod, v corev1.Volume) string {
	switch {
	case claimOf(p, v) != "":
		return "claim " + claimOf(p, v)
	case v.ConfigMap != nil:
		return "ConfigMap " + v.ConfigMap.Name
	case v.Secret != nil:
		return "Secret " + v.Secret.SecretName
	case v.HostPath != nil:
		return "hostPath " + v.HostPath.Path
	case v.CSI != nil:
		return "driver " + v.CSI.Driver
	case v.NFS != nil:
		return "NFS " + v.NFS.Server + ":" + v.NFS.Path
	case v.EmptyDir != nil:
		return "emptyDir"
	case v.Projected != nil:
		return "projected"
	case v.DownwardAPI != nil:
		return "downwardAPI"
	}
	return "other"
}

// containersOf lists the mounts of a volume in the containers of a pod.
func containersOf(p *corev1.Pod, volume string) string {
	var list []string
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	for _, c := range p.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts, VolumeDevices: c.VolumeDevices})
	}
	for _, c := range containers {
		for _, m := range c.VolumeMounts {
			if m.Name != volume {
				continue
			}
			text := c.Name + ": " + m.MountPath
			if path := cmp.Or(m.SubPath, m.SubPathExpr); path != "" {
				text += " (subPath " + path + ")"
			}
			list = append(list, text)
		}
		for _, d := range c.VolumeDevices {
			if d.Name == volume {
				list = append(list, c.Name+": device "+d.DevicePath)
			}
		}
	}
	return strings.Join(list, "; ")
}
