// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Sbom writes what programs are made of, as the programs themselves say (debug/buildinfo), in CycloneDX: with
// what was linked, and not with what a module file merely mentions. It is built with the modules of the tools:
// go run -modfile=packaging/tools/pkg.mod packaging/sbom.go VERSION TIME PROGRAM... >FILE
package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: sbom VERSION TIME PROGRAM..., TIME in seconds")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("time: %w", err)
	}
	bom := cdx.NewBOM()
	whole := cdx.Component{BOMRef: "boxd", Type: cdx.ComponentTypeApplication, Name: "boxd", Version: args[0]}
	bom.Metadata = &cdx.Metadata{Timestamp: time.Unix(seconds, 0).UTC().Format(time.RFC3339), Component: &whole}
	modules := map[string]cdx.Component{}
	var programs []cdx.Component
	var edges []cdx.Dependency
	for _, path := range args[2:] {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name := filepath.Base(path)
		programs = append(programs, cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: args[0]})
		parts := []string{standard(modules, info.GoVersion)}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			ref := fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)
			// The sum is that of go.sum: of the module as a whole, not of a file.
			sum := []cdx.Property{{Name: "cdx:go:sum", Value: m.Sum}}
			modules[ref] = cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: ref, Properties: &sum}
			parts = append(parts, ref)
		}
		edges = append(edges, cdx.Dependency{Ref: name, Dependencies: &parts})
	}
	all := programs
	for _, m := range modules {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	slices.SortFunc(edges, func(a, b cdx.Dependency) int { return cmp.Compare(a.Ref, b.Ref) })
	bom.Components, bom.Dependencies = &all, &edges
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// standard adds Go's own library, which every program has.
func standard(modules map[string]cdx.Component, version string) string {
	number := version[len("go"):]
	ref := "pkg:golang/std@" + number
	modules[ref] = cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: "std", Version: number, PackageURL: ref}
	return ref
}
