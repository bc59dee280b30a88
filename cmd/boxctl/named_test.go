// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/scanner"
	gotoken "go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// inCode matches a command in a text for people: in code in a document, and in what an error or a log says, where it follows a bracket or a mark.
var inCode, inString = regexp.MustCompile("`boxctl ([^`\n]*)`"), regexp.MustCompile(`(?:^["\x60]|\(|[:;,] )boxctl ([^"\x60(),;:]*)`)

// What the guide, the README and errors tell people to run exists.
func TestCommandsThatTextsNameExist(t *testing.T) {
	boxtest.RequireSources(t)
	root := shippedRoot(t)
	named := 0
	check := func(at, line string) {
		words := strings.Fields(line)
		if i := slices.Index(words, "--owner"); i >= 0 && i+1 < len(words) {
			words = slices.Delete(words, i, i+2)
		}
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
		if len(words) == 0 || words[0] == "runs" || words[0] != strings.ToLower(words[0]) || strings.ContainsAny(words[0], "%./|") {
			return
		}
		named++
		found, rest, err := root.Find(words)
		switch {
		case err != nil || found == root:
			t.Errorf("%s: boxctl %s: there is no such command", at, line)
		case found.HasSubCommands() && !found.Runnable() && len(rest) > 0 && rest[0] == strings.ToLower(rest[0]):
			t.Errorf("%s: boxctl %s: %s has no such command", at, line, found.CommandPath())
		}
	}
	for _, page := range append(textFiles(t, "../../docs/guide", ".md"), "../../README.md", "../../SECURITY.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inCode.FindAllStringSubmatch(string(text), -1) {
			check(page, m[1])
		}
	}
	for _, dir := range []string{"../../relay", "../../supervisor", "../../isolation", "../../cmd/boxd", "../../cmd/boxfleet", "../../cmd/boxctl"} {
		for _, file := range textFiles(t, dir, ".go") {
			if strings.HasSuffix(file, "_test.go") || filepath.Base(file) == "mistakes.go" { // whose commands do not exist
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			set := gotoken.NewFileSet()
			var s scanner.Scanner
			s.Init(set.AddFile(file, -1, len(text)), text, nil, 0)
			for _, kind, literal := s.Scan(); kind != gotoken.EOF; _, kind, literal = s.Scan() {
				if kind != gotoken.STRING {
					continue
				}
				for _, m := range inString.FindAllStringSubmatch(literal, -1) {
					check(file, m[1])
				}
			}
		}
	}
	if named < 200 {
		t.Errorf("only %d commands were found", named)
	}
}

// textFiles lists those below a directory whose names end so.
func textFiles(t *testing.T, dir, end string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasSuffix(at, end) {
			list = append(list, at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
