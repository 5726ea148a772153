// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// The parts of a software bill of materials that are used here, as SPDX 2.3 has them in JSON.
type (
	bill struct {
		SPDXVersion       string         `json:"spdxVersion"`
		DataLicense       string         `json:"dataLicense"`
		SPDXID            string         `json:"SPDXID"`
		Name              string         `json:"name"`
		DocumentNamespace string         `json:"documentNamespace"`
		CreationInfo      creation       `json:"creationInfo"`
		Packages          []part         `json:"packages"`
		Relationships     []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	part struct {
		SPDXID           string      `json:"SPDXID"`
		Name             string      `json:"name"`
		VersionInfo      string      `json:"versionInfo,omitempty"`
		DownloadLocation string      `json:"downloadLocation"`
		FilesAnalyzed    bool        `json:"filesAnalyzed"`
		LicenseConcluded string      `json:"licenseConcluded"`
		LicenseDeclared  string      `json:"licenseDeclared"`
		CopyrightText    string      `json:"copyrightText"`
		Checksums        []checksum  `json:"checksums,omitempty"`
		ExternalRefs     []reference `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

// addBills adds a bill of materials for each program and each image. The modules are those that the toolchain has written into the
// programs.
func (r *release) addBills() error {
	for _, arch := range r.arches {
		in := func(program string) string { return path.Join(r.bin, "linux_"+arch, program) }
		if err := r.addBill("kubediag-linux-"+arch, in("kubediag")); err != nil {
			return err
		}
		for _, i := range images {
			var programs []string
			for _, program := range i.binaries {
				programs = append(programs, in(program))
			}
			if err := r.addBill(fmt.Sprintf("kubediag-%s-image-linux-%s", i.name, arch), programs...); err != nil {
				return err
			}
		}
	}
	for _, p := range platforms {
		if err := r.addBill(fmt.Sprintf("kubectl-kubediag-%s-%s", p.system, p.arch), p.path(r.bin)); err != nil {
			return err
		}
	}
	return nil
}

// addBill adds the bill of one file of the release, which holds these programs.
func (r *release) addBill(name string, programs ...string) error {
	const top = "SPDXRef-DOCUMENT"
	b := bill{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: top, Name: name,
		CreationInfo: creation{r.date, []string{"Tool: kubediag-release-" + r.version}},
	}
	known := map[string]bool{}
	add := func(p part, by, how string) {
		if !known[p.SPDXID] {
			known[p.SPDXID] = true
			b.Packages = append(b.Packages, p)
		}
		b.Relationships = append(b.Relationships, relationship{by, how, p.SPDXID})
	}
	all := sha256.New()
	for _, program := range programs {
		content, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("read the modules of %q: %w", program, err)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		all.Write([]byte(sum))
		of := spdxPart(path.Base(program), r.version)
		of.LicenseConcluded, of.LicenseDeclared = "Apache-2.0", "Apache-2.0"
		of.Checksums = []checksum{{"SHA256", sum}}
		add(of, top, "DESCRIBES")
		modules := append(slices.Clone(info.Deps), &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})
		for _, m := range modules {
			if m.Replace != nil {
				m = m.Replace
			}
			p := spdxPart(m.Path, m.Version)
			p.ExternalRefs = []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}
			add(p, of.SPDXID, "DEPENDS_ON")
		}
	}
	b.DocumentNamespace = fmt.Sprintf("https://kubediag.org/spdx/%s-%s-%x", name, r.version, all.Sum(nil)[:16])
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	r.add(name+".spdx.json", append(text, '\n'))
	return nil
}

// spdxPart is a package of which nothing but name and version is claimed.
func spdxPart(name, version string) part {
	const unknown = "NOASSERTION"
	id := regexp.MustCompile(`[^0-9A-Za-z.-]`).ReplaceAllString(name+"-"+version, "-")
	return part{
		SPDXID: "SPDXRef-Package-" + id, Name: name, VersionInfo: version, DownloadLocation: unknown,
		LicenseConcluded: unknown, LicenseDeclared: unknown, CopyrightText: unknown,
	}
}
