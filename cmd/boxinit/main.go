// SPDX-License-Identifier: Apache-2.0

// PID 1 has one P by its environment; reading the cgroup's CPU quota would take longer than
// everything else before main.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command boxinit is PID 1 of every box: it sets the box up from within, then runs its programs. Only the keeper starts
// it.
package main

import "os"

func main() { os.Exit(boot()) }
