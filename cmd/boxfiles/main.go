// SPDX-License-Identifier: Apache-2.0

// It is started for each request, so its runtime skips reading cgroup limits.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command boxfiles does file operations inside a box. Only boxd starts it. It runs as the box user: it can do no more
// than any program of the box. Outside of boxes, boxkeeper has it make what writable
// roots have in common: see isolation.BaseCommand.
package main

import (
	"os"

	"github.com/boxd-dev/boxd/isolation/files"

	"github.com/boxd-dev/boxd/isolation"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == files.LayerCommand {
		os.Exit(runLayer(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == isolation.LimitedCommand {
		os.Exit(runLimited(os.Args[2:], os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == isolation.BaseCommand {
		os.Exit(runBase(os.Args[2:], os.Stdout))
	}
	os.Exit(Main(os.Stdin, os.Stdout))
}
