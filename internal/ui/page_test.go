// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
)

// evil is the name of an attacker, with all that a browser or a reader acts on.
const evil = "</code></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{.}}\u202e\u2066gpj\x1b[2J\x00\xff&amp;"

// pageOf has a text at each place of a page.
func pageOf(text string, l Language) Page {
	state := State(text)
	return Page{
		Language: l, Title: text, Made: time.Unix(1790000000, 0), State: state, Verdict: text, Notes: []string{text},
		Sections: []Section{{
			ID: text, Heading: text, Text: []string{text}, Facts: []Fact{{text, text, text}}, Tiles: []Tile{{state, text, text, text}}, Folded: []Folded{{text, []string{text}}},
			Table:    Table{[]string{text, text}, []Row{{state, text, []string{text, text}, text}}},
			Commands: []fault.Command{{Purpose: text, Line: text, Effect: fault.Effect(text)}},
			Chain: Chain(fault.Finding{
				Code: fault.Code(text), Container: text, Volume: text, Holder: text, Pod: fault.Pod{Namespace: text, Name: text},
				Mount:   fault.Mount{Point: "/" + text, Root: text, Device: text, FSType: text, MountInfoID: 1},
				Details: fault.Details{Place: fault.PlaceSubPath, Driver: text, PersistentVolume: text},
			}),
		}},
	}
}

func pageHTML(t *testing.T, p Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestNothingEscapes: a page with the texts of an attacker has the elements and attributes of one with harmless texts.
func TestNothingEscapes(t *testing.T) {
	t.Parallel()
	for _, language := range []Language{English, Chinese} {
		for name, text := range map[string]string{"markup": evil, "long": strings.Repeat("n", 253), "paths": strings.Repeat("/\u05d0</g>", 900)} {
			page := pageHTML(t, pageOf(text, language))
			if got, want := skeleton(t, page), skeleton(t, pageHTML(t, pageOf("x", language))); name != "paths" && !cmp.Equal(got, want) {
				t.Errorf("%s: elements (-harmless +got):\n%s", name, cmp.Diff(want, got))
			}
			for i, r := range page {
				if !unicode.IsPrint(r) && r != '\n' {
					t.Errorf("%s: character %U in %q", name, r, page[max(0, i-20):i])
				}
			}
			if strings.Contains(page, "<script") || strings.Contains(page, "<img") {
				t.Errorf("%s: the page has an element of the attacker:\n%s", name, page)
			}
		}
	}
}

// skeleton lists the elements of a page with the names of their attributes. Lines of drawings are left out: long texts have more of them.
func skeleton(t *testing.T, page string) (list []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local != "text" {
			text := e.Name.Local
			for _, a := range e.Attr {
				text += " " + a.Name.Local
			}
			list = append(list, text)
		}
	}
}

// TestNothingIsLoaded: the policy of the page allows its own style sheet by its hash, and nothing else.
func TestNothingIsLoaded(t *testing.T) {
	t.Parallel()
	page := pageHTML(t, pageOf("x", English))
	_, style, _ := strings.Cut(page, "<style>")
	style, _, found := strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	want := `content="default-src 'none'; style-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'; base-uri 'none'; form-action 'none'"`
	if !found || strings.Count(page, want) != 1 || strings.Index(page, want) > strings.Index(page, "<style>") {
		t.Errorf("the page has not the policy %s before its style sheet:\n%s", want, page)
	}
	for _, word := range []string{"http:", "https:", "//", "url(", "@import", " style=", "javascript:", "src="} {
		if strings.Contains(strings.ReplaceAll(page, "</", ""), word) {
			t.Errorf("the page has %q", word)
		}
	}
}

// TestServedPage: a page that is served loads its own files, and lets the browser name its origin in the forms.
func TestServedPage(t *testing.T) {
	t.Parallel()
	p := pageOf("x", English)
	p.Token = "secret"
	p.Sections[0].Forms = []Form{{"/approve/a/b", "Approve", []Fact{{"hash", "0a", ""}}}}
	page := pageHTML(t, p)
	for text, want := range map[string]bool{
		headLive: true, "no-referrer": false, "<style": false, `<form method="post" action="/approve/a/b">`: true, `name="token" value="secret"`: true, `name="hash" value="0a"`: true,
	} {
		if strings.Contains(page, text) != want {
			t.Errorf("the page has %q: %t, want %t:\n%s", text, !want, want, page)
		}
	}
}

// TestContrasts: every text reads on both backgrounds, and every edge is seen, in both schemes (WCAG 2.2 AA).
func TestContrasts(t *testing.T) {
	t.Parallel()
	style, err := files.ReadFile("style.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, found := strings.Cut(string(style), "@media (prefers-color-scheme:dark)")
	if !found {
		t.Fatal("the style sheet has no dark scheme")
	}
	dark, _, _ = strings.Cut(dark, "\n")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+):#([0-9a-f]{6})`).FindAllStringSubmatch(text, -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		for _, front := range []string{"text", "dim", "link", "bad", "warn", "good", "edge"} {
			least := 4.5
			if front == "edge" {
				least = 3
			}
			for _, back := range []string{"page", "panel"} {
				a, b := colours[front], colours[back]
				if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < least {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want %.1f", scheme, front, back, got, least)
				}
			}
		}
	}
}

// luminance is the relative luminance of a colour.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
			continue
		}
		sum += weight * math.Pow((c+0.055)/1.055, 2.4)
	}
	return sum
}

// TestChains: each place has a chain with one broken link, the right ones before it and the affected ones behind.
func TestChains(t *testing.T) {
	t.Parallel()
	for _, place := range fault.Places() {
		chain := Chain(fault.Finding{Mount: fault.Mount{Point: "/at"}, Details: fault.Details{Place: place}})
		broken := slices.IndexFunc(chain, func(l Link) bool { return l.State == Bad })
		if broken < 0 {
			t.Errorf("%s: no link is broken", place)
			continue
		}
		for i, link := range chain {
			want := map[bool]State{true: Good, false: Warn}[i < broken]
			if link.Role == roleHolder || link.Role == roleSource && place != fault.PlaceSubPath && i < broken {
				want = ""
			}
			if i != broken && link.State != want {
				t.Errorf("%s: %s is %q, want %q", place, link.Role, link.State, want)
			}
			if (i == broken) != slices.Contains(link.Texts, "/at") {
				t.Errorf("%s: %s has the texts %q", place, link.Role, link.Texts)
			}
		}
	}
	for _, code := range verb.Codes() {
		if len(Chain(fault.Finding{Code: fault.Code(code)})) == 0 {
			t.Errorf("%s without a place has no chain", code)
		}
	}
}

// TestDrawingSaysItInWords: who sees no picture hears the chain, and no line leaves its box.
func TestDrawingSaysItInWords(t *testing.T) {
	t.Parallel()
	d := English.draw(Chain(fault.Finding{
		Code: fault.StaleSubPath, Volume: "conf", Container: "nginx", Pod: fault.Pod{Namespace: "shop", Name: "web-0"},
		Mount:   fault.Mount{Point: "/var/lib/kubelet/pods/37993802-2c4b-4f52-9d5e-0a6f1ad3c0de/volume-subpaths/conf/nginx/0", Root: "/x//deleted", Device: "8:1", FSType: "ext4"},
		Details: fault.Details{Place: fault.PlaceSubPath, Driver: "csi.juicefs.com"},
	}))
	want := "source: not at fault driver csi.juicefs.com; volume: not at fault conf; subPath bind: broken here " +
		"/var/lib/kubelet/pods/37993802-2c4b-4f52-9d5e-0a6f1ad3c0de/volume-subpaths/conf/nginx/0 ext4 8:1 root /x//deleted; container: affected nginx pod shop/web-0"
	if d.Words != want {
		t.Errorf("words %q, want %q", d.Words, want)
	}
	for _, b := range d.Boxes {
		for _, line := range b.Lines {
			if line.Y > b.Y+b.Height || len(line.Text) > chainColumn {
				t.Errorf("%s: line %q at %d leaves the box at %d with height %d", b.Heading, line.Text, line.Y, b.Y, b.Height)
			}
		}
		if b.Y+b.Height > d.Height {
			t.Errorf("%s leaves the drawing", b.Heading)
		}
	}
}

// TestWordsAreTranslated: each word that a template or a chain shows has a Chinese one.
func TestWordsAreTranslated(t *testing.T) {
	t.Parallel()
	text, err := files.ReadFile("page.html")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range regexp.MustCompile(`\{\{t "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		words = append(words, m[1])
	}
	for _, shape := range chains {
		for _, r := range shape.links {
			words = append(words, string(r))
		}
	}
	for _, word := range stateWords {
		words = append(words, word)
	}
	for _, word := range verb.Hurts {
		words = append(words, word)
	}
	for _, word := range verb.Heals {
		words = append(words, word)
	}
	for _, word := range words {
		if Chinese.Word(word) == word && word != "pod" {
			t.Errorf("%q is not translated", word)
		}
		if English.Word(word) != word {
			t.Errorf("%q becomes %q in English", word, English.Word(word))
		}
	}
}

func TestLanguage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  map[string]string
		want Language
	}{
		"nothing":           {nil, English},
		"locale":            {map[string]string{"LANG": "zh_CN.UTF-8"}, Chinese},
		"all before others": {map[string]string{"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, English},
	} {
		if got := localeLanguage(func(key string) string { return tc.env[key] }); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	l := English
	if err := l.Set("zh"); err != nil || l != Chinese || l.Tag() != "zh-CN" {
		t.Errorf("language %q, error %v", l, err)
	}
	if err := l.Set("fr"); err == nil || err.Error() != "must be en or zh" || l != Chinese {
		t.Errorf("language %q, error %v", l, err)
	}
}

// TestPreventions: a page has the sentence of its runbook, without Markdown.
func TestPreventions(t *testing.T) {
	t.Parallel()
	for code, want := range map[fault.Code][2]string{
		fault.StaleSubPath: {"update the kubelet to 1.19 or later", "把 kubelet 升级到 1.19"},
		fault.HeldDevice:   {"  mountPropagation: HostToContainer", "  mountPropagation: HostToContainer"},
		fault.HungMount:    {"", ""},
		"Nope":             {"", ""},
	} {
		for i, language := range []Language{English, Chinese} {
			got := language.Prevention(code)
			if !strings.Contains(got, want[i]) || strings.Contains(got, "`") || (got == "") != (want[i] == "") {
				t.Errorf("%s in %s: %q, want %q", code, language, got, want[i])
			}
		}
	}
}

type brokenPipe struct{}

var errBroken = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteReportsErrors(t *testing.T) {
	t.Parallel()
	if err := Write(brokenPipe{}, Page{}); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want that of the pipe", err)
	}
}
