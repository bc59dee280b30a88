// SPDX-License-Identifier: Apache-2.0

// It starts for each request: what it need not look up it does not.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command boxfiles reads, writes and searches files inside a box. Only boxd starts it.
package main

import (
	"os"

	"github.com/boxd-dev/boxd/isolation/files/serve"
)

func main() { os.Exit(serve.Main(os.Stdin, os.Stdout)) }
