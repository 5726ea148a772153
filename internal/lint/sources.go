// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sources are the sources of a projected volume that has the files of these subPaths, each under the name that it has
// in the container. A reason is given if the template does not say enough for that.
func (c *check) sources(of container, indexes []int) (all []corev1.VolumeProjection, why string) {
	for _, i := range indexes {
		m := of.mounts[i]
		w := wanted{as: path.Base(path.Clean("/" + m.MountPath)), name: path.Clean(m.SubPath), volume: m.Name}
		if m.SubPathExpr != "" {
			return nil, fmt.Sprintf("subPathExpr %q is known in the container alone", m.SubPathExpr)
		}
		if strings.HasPrefix(w.name, "..") {
			return nil, fmt.Sprintf("subPath %q is a name that the kubelet uses for itself", m.SubPath)
		}
		found := w.project(c.volumes[m.Name])
		if len(found) == 0 {
			return nil, fmt.Sprintf("the template does not say which source of volume %q has %q", m.Name, m.SubPath)
		}
		all = append(all, found...)
	}
	return all, ""
}

// wanted is the entry of a volume that one subPath names, and its name in the container's directory.
type wanted struct{ name, as, volume string }

// rename gives a path in the volume its path in the new one; ok is false if the subPath does not cover it.
func (w wanted) rename(name string) (renamed string, ok bool) {
	name = path.Clean(name)
	if !inside(name, w.name) {
		return "", false
	}
	return path.Join(w.as, strings.TrimPrefix(name, w.name)), true
}

// project returns the part of a volume that the subPath covers, as sources of a projected volume.
func (w wanted) project(volume corev1.Volume) []corev1.VolumeProjection {
	var source corev1.VolumeProjection
	var mode *int32
	switch {
	case volume.ConfigMap != nil:
		v := volume.ConfigMap
		source.ConfigMap = &corev1.ConfigMapProjection{LocalObjectReference: v.LocalObjectReference, Items: v.Items, Optional: v.Optional}
		mode = v.DefaultMode
	case volume.Secret != nil:
		v := volume.Secret
		source.Secret = &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: v.SecretName}, Items: v.Items, Optional: v.Optional}
		mode = v.DefaultMode
	case volume.DownwardAPI != nil:
		source.DownwardAPI, mode = &corev1.DownwardAPIProjection{Items: volume.DownwardAPI.Items}, volume.DownwardAPI.DefaultMode
	case volume.Projected != nil:
		// The entry of a path is taken from every source. A source that has all of its keys may have the file or not: it is taken only
		// if there is one such source, and no path names the file.
		var open, all []corev1.VolumeProjection
		for _, s := range volume.Projected.Sources {
			switch {
			case s.ConfigMap != nil && len(s.ConfigMap.Items) == 0, s.Secret != nil && len(s.Secret.Items) == 0:
				open = append(open, s)
			default:
				all = append(all, w.covered(s, volume.Projected.DefaultMode)...)
			}
		}
		if len(all) > 0 || len(open) != 1 {
			return all
		}
		return w.covered(open[0], volume.Projected.DefaultMode)
	}
	return w.covered(source, mode)
}

// keys are the items that the subPath covers. Without items, every key is a file of its own name. An item without a mode
// has that of its volume.
func (w wanted) keys(items []corev1.KeyToPath, mode *int32) (covered []corev1.KeyToPath) {
	if len(items) == 0 && !strings.Contains(w.name, "/") {
		return []corev1.KeyToPath{{Key: w.name, Path: w.as, Mode: mode}}
	}
	for _, item := range items {
		if renamed, ok := w.rename(item.Path); ok {
			covered = append(covered, corev1.KeyToPath{Key: item.Key, Path: renamed, Mode: cmp.Or(item.Mode, mode)})
		}
	}
	return covered
}

// covered returns the part of one source that the subPath covers.
func (w wanted) covered(s corev1.VolumeProjection, mode *int32) []corev1.VolumeProjection {
	switch {
	case s.ConfigMap != nil:
		p := *s.ConfigMap
		if p.Items = w.keys(p.Items, mode); len(p.Items) > 0 {
			return []corev1.VolumeProjection{{ConfigMap: &p}}
		}
	case s.Secret != nil:
		p := *s.Secret
		if p.Items = w.keys(p.Items, mode); len(p.Items) > 0 {
			return []corev1.VolumeProjection{{Secret: &p}}
		}
	case s.DownwardAPI != nil:
		var covered []corev1.DownwardAPIVolumeFile
		for _, item := range s.DownwardAPI.Items {
			if renamed, ok := w.rename(item.Path); ok {
				item.Path, item.Mode = renamed, cmp.Or(item.Mode, mode)
				covered = append(covered, item)
			}
		}
		if len(covered) > 0 {
			return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: covered}}}
		}
	case s.ServiceAccountToken != nil:
		p := *s.ServiceAccountToken
		if renamed, ok := w.rename(p.Path); ok {
			p.Path = renamed
			return []corev1.VolumeProjection{{ServiceAccountToken: &p}}
		}
	case s.ClusterTrustBundle != nil:
		p := *s.ClusterTrustBundle
		if renamed, ok := w.rename(p.Path); ok {
			p.Path = renamed
			return []corev1.VolumeProjection{{ClusterTrustBundle: &p}}
		}
	}
	return nil
}
