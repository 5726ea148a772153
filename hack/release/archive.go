// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// addPrograms adds the program kubediag for each architecture, as it runs.
func (r *release) addPrograms() error {
	for _, arch := range r.arches {
		content, err := os.ReadFile(filepath.Join(r.bin, "linux_"+arch, "kubediag"))
		if err != nil {
			return err
		}
		r.files = append(r.files, file{"kubediag-linux-" + arch, content, 0o755})
	}
	return nil
}

// platform is a system on which people work.
type platform struct{ system, arch string }

// platforms are those of the plugin.
var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// program is the file name of the plugin on a system.
func (p platform) program() string {
	if p.system == "windows" {
		return "kubectl-kubediag.exe"
	}
	return "kubectl-kubediag"
}

// archive is the file name of the plugin's archive.
func (p platform) archive() string {
	if p.system == "windows" {
		return fmt.Sprintf("kubectl-kubediag-%s-%s.zip", p.system, p.arch)
	}
	return fmt.Sprintf("kubectl-kubediag-%s-%s.tar.gz", p.system, p.arch)
}

// path is where the plugin lies among the programs.
func (p platform) path(bin string) string {
	return filepath.Join(bin, p.system+"_"+p.arch, p.program())
}

// addPlugins adds an archive with the plugin and the license for each platform.
func (r *release) addPlugins() error {
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	for _, p := range platforms {
		program, err := os.ReadFile(p.path(r.bin))
		if err != nil {
			return err
		}
		pack := tarGz
		if p.system == "windows" {
			pack = zipped
		}
		content, err := pack([]file{{"LICENSE", license, 0o644}, {p.program(), program, 0o755}})
		if err != nil {
			return err
		}
		r.add(p.archive(), content)
	}
	return nil
}

// tarGz packs files of root with the time of the epoch.
func tarGz(files []file) ([]byte, error) {
	content, err := tarred(files)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

func tarred(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// zipped packs files without times.
func zipped(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		header := zip.FileHeader{Name: f.name, Method: zip.Deflate}
		header.SetMode(f.mode)
		to, err := w.CreateHeader(&header)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// tarOf packs all files of a folder, by their names in it.
func tarOf(dir string) ([]byte, error) {
	files, err := filesIn(dir)
	if err != nil {
		return nil, err
	}
	return tarred(files)
}

// filesIn reads all files of a folder, in the order of their names.
func filesIn(dir string) (files []file, err error) {
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		files = append(files, file{path.Clean(name), content, 0o644})
		return err
	})
	return files, err
}
