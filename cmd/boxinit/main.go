// SPDX-License-Identifier: Apache-2.0

// PID 1 has one P by its environment; reading the cgroup's CPU quota would take longer than
// everything else before main.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command boxinit is PID 1 of every box. Only the keeper starts it.
package main

import (
	"os"

	"github.com/boxd-dev/boxd/isolation/inside"
)

func main() { os.Exit(inside.Main()) }
