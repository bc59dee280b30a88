// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// source is the text of all programs, without their tests.
func source(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

var quoted = regexp.MustCompile("`([^`]+)`")

// ofKernel are words in messages that the programs take from elsewhere: from the kernel, and the step and value of a failed start.
func ofKernel() []string {
	return []string{": permission denied", ": no such file or directory", ": connection refused", `lookup "`, `exec "`, `": no such file or directory`, `": permission denied`}
}

func TestMessagesOfTroubleshootingAreInTheSource(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("guide/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	programs, n := source(t), 0
	for line := range strings.Lines(string(text)) {
		heading, ok := strings.CutPrefix(line, "### ")
		if !ok {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(heading, -1) {
			n++
			for part := range strings.SplitSeq(m[1], "…") {
				known := strings.Contains(programs, part)
				for _, word := range ofKernel() {
					known = known || part == word
				}
				if !known {
					t.Errorf("no program has the text %q, of the message %q", part, m[1])
				}
			}
		}
	}
	if n == 0 {
		t.Error("troubleshooting.md explains no message")
	}
}

var link = regexp.MustCompile(`\]\(([^)#]+)\)`)

func TestLinksOfTheGuideLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("guide/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: err = %v, want no error and len(pages) != 0", err)
	}
	reached := map[string]bool{"README.md": true}
	for _, page := range append(pages, "../README.md", "../HACKING.md", "../ARCHITECTURE.md", "../SECURITY.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			if page == "guide/README.md" {
				reached[m[1]] = true
			}
		}
	}
	for _, page := range pages {
		if !reached[filepath.Base(page)] {
			t.Errorf("guide/README.md does not lead to %s", page)
		}
	}
}

// The README is one page for readers who do not know boxd.
func TestTheREADMEIsOnePage(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte("\n")); n > 120 {
		t.Errorf("README.md has %d lines, at most 120 are wanted", n)
	}
}
