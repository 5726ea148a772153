// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// archive is a view of the machine's own Debian archive that knows older suites, too, and takes nothing for installed.
// It has no effect on the machine.
type archive struct{ dir string }

// suites are those of Debian that kernels are taken from beside the machine's own, and the suites of their security updates.
var suites = []string{"bullseye"}

// keyring is where Debian's archive keys lie.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// stale is the age at which lists of packages are fetched again.
const stale = 12 * time.Hour

// openArchive returns the view, with lists of packages that are not stale. The caller holds the lock of dir.
func openArchive(ctx context.Context, dir string) (archive, error) {
	sources, err := sourcesList(ctx)
	if err != nil {
		return archive{}, err
	}
	return viewOf(ctx, dir, sources)
}

// viewOf is openArchive for these sources.
func viewOf(ctx context.Context, dir string, sources []byte) (archive, error) {
	a := archive{dir}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return a, err
		}
	}
	list, stamp := filepath.Join(dir, "sources.list"), filepath.Join(dir, "fetched")
	old, _ := os.ReadFile(list)
	if st, err := os.Stat(stamp); err == nil && time.Since(st.ModTime()) < stale && bytes.Equal(old, sources) {
		return a, nil
	}
	if err := errors.Join(os.WriteFile(list, sources, 0o644), os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)); err != nil {
		return a, err
	}
	if _, err := a.run(ctx, "", "apt-get", "update"); err != nil {
		return a, err
	}
	return a, os.WriteFile(stamp, nil, 0o644)
}

// sourcesList says the same as the machine's own sources of Debian, and names the older suites on the same mirror.
func sourcesList(ctx context.Context) ([]byte, error) {
	out, err := command(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(release)
	if m == nil {
		return nil, errors.New("find release of Debian: /etc/os-release names none")
	}
	own, option := string(m[1]), ""
	if _, err := os.Stat(keyring); err == nil {
		option = "[signed-by=" + keyring + "] "
	}
	var list bytes.Buffer
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) != 3 || f[2] != "main" || f[1] != own && !strings.HasPrefix(f[1], own+"-") {
			continue
		}
		fmt.Fprintf(&list, "deb %s%s %s main\n", option, f[0], f[1])
		for _, suite := range suites {
			if rest := strings.TrimPrefix(f[1], own); suite != own && (rest == "" || rest == "-security") {
				fmt.Fprintf(&list, "deb %s%s %s main\n", option, f[0], suite+rest)
			}
		}
	}
	if list.Len() == 0 {
		return nil, fmt.Errorf("find Debian's archive: apt has no source of %s", own)
	}
	return list.Bytes(), nil
}

// run runs a program of apt on the view.
func (a archive) run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	options := []string{
		"-o", "Dir::Etc::SourceList=" + filepath.Join(a.dir, "sources.list"), "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(a.dir, "lists"), "-o", "Dir::State::status=" + filepath.Join(a.dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"), "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=root",
		"-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "APT::Update::Error-Mode=any",
	}
	return command(ctx, dir, program, append(options, args...)...)
}

// kernelPackage finds the package of the newest kernel of a version such as 5.10, by what Debian's metapackages depend on.
func (a archive) kernelPackage(ctx context.Context, version string) (string, error) {
	out, err := a.run(ctx, "", "apt-cache", "show", "linux-image-cloud-amd64", "linux-image-"+version+"-cloud-amd64")
	m := regexp.MustCompile("(?m)^Depends: (linux-image-" + regexp.QuoteMeta(version) + "\\.[^ ]+-cloud-amd64)( |$)").FindSubmatch(out)
	if m == nil {
		return "", errors.Join(fmt.Errorf("find kernel %s: no package of it in Debian's archive as this machine sees it", version), err)
	}
	return string(m[1]), nil
}

// closure lists the packages, and all that they depend on, as NAME=VERSION.
func (a archive) closure(ctx context.Context, packages []string) ([]string, error) {
	out, err := a.run(ctx, "", "apt-get", append([]string{"-s", "--no-install-recommends", "install"}, packages...)...)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^Inst (\S+) \((\S+) `).FindAllSubmatch(out, -1) {
		all = append(all, string(m[1])+"="+string(m[2]))
	}
	return all, nil
}

// unpack fetches packages and lays their files below root. None of their scripts is run.
func (a archive) unpack(ctx context.Context, root string, packages ...string) error {
	debs, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	if _, err := a.run(ctx, debs, "apt-get", append([]string{"download"}, packages...)...); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range found {
		// Packages that are older than the merger of /bin and /usr/bin find the links kept.
		if _, err := command(ctx, root, "sh", "-c", "dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink -f -", "sh", deb); err != nil {
			return err
		}
	}
	return nil
}

// maxOutput bounds what is said of a run that failed, in bytes.
const maxOutput = 4096

// command runs a program and gives its output, or says how it failed.
func command(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = 5 * time.Second // children of one that was killed may keep its output open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := bytes.Join([][]byte{out, stderr.Bytes()}, []byte("\n"))
		return out, fmt.Errorf("run %s: %w\n%s", program, err, said[max(0, len(said)-maxOutput):])
	}
	return out, nil
}
