// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"errors"
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
)

// scanPage writes the page of a scan of a kubelet's root.
func scanPage(t *testing.T, root string) (string, error) {
	t.Helper()
	return verbtest.Run(t, NewScanCommand(""), "-o", "html", "--lang=en", "--kubelet-root", root)
}

var (
	brokenLink  = regexp.MustCompile(`(?s)<g class="link bad">.*?</g>\s*(<text.*?)</g>`)
	lineOfLink  = regexp.MustCompile(`(?s)<text[^>]*>(.*?)</text>`)
	rowOfLinks  = regexp.MustCompile(`(?s)<tr><th scope="row"><b class="(\w*)" aria-hidden="true">.</b> (.*?)</tr>`)
	linksOfPage = regexp.MustCompile(`(?s)<h2>Links</h2>(.*?)</section>`)
)

// TestPictureOfARealChain: the broken link of the picture is the mount that the kernel's table has at that place, and each mount of the
// pods is on the page, those that are right as right.
func TestPictureOfARealChain(t *testing.T) {
	s, pods := newStage(t, 3, 2)
	updateConfigMap(s, pods[1])
	page, err := scanPage(t, s.Root)
	if !errors.Is(err, verb.ErrFaults) {
		t.Fatalf("ends with %v:\n%s", err, page)
	}
	table, err := s.Node.Mounts(t.Context())
	must(t, err)
	stale := s.Point(pods[1], "configmap", "app", 0)
	drawn := brokenLink.FindStringSubmatch(page)
	if drawn == nil {
		t.Fatalf("no link is broken:\n%s", page)
	}
	var lines []string
	for _, line := range lineOfLink.FindAllStringSubmatch(drawn[1], -1) {
		lines = append(lines, html.UnescapeString(line[1]))
	}
	picture := strings.Join(lines, "")
	found := 0
	for _, m := range table.Mounts() {
		if m.Point != stale {
			continue
		}
		found++
		for _, part := range []string{m.Point, fmt.Sprintf("%s %d:%d", m.FSType, m.Major, m.Minor), "root " + m.Root, fmt.Sprintf("mount %d", m.ID)} {
			if !strings.Contains(picture, part) {
				t.Errorf("the mount table has %q, the picture %q", part, picture)
			}
		}
	}
	if found != 1 || !strings.HasPrefix(picture, "subPath bind: broken here") {
		t.Errorf("%d mounts at %s, the picture %q", found, stale, picture)
	}
	links := linksOfPage.FindStringSubmatch(page)
	if links == nil {
		t.Fatalf("no links:\n%s", page)
	}
	states := map[string]string{}
	for _, row := range rowOfLinks.FindAllStringSubmatch(links[1], -1) {
		for _, m := range table.Mounts() {
			if strings.Contains(html.UnescapeString(row[2]), ">"+m.Point+"<") {
				states[m.Point] = row[1]
			}
		}
	}
	for i, pod := range pods {
		for index := range 2 {
			want := "good"
			if i == 1 {
				want = "warn" // it hurts at the next start
			}
			if at := s.Point(pod, "configmap", "app", index); states[at] != want {
				t.Errorf("%s is %q, want %q:\n%s", at, states[at], want, links[1])
			}
		}
	}
}
