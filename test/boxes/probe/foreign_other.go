// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package main

import "syscall"

// foreign returns the calls specific to this architecture: none.
func foreign() map[string]attempt { return nil }

// foreignCall would make a 32-bit call, which this architecture does not have here.
func foreignCall(uint32) error { return syscall.ENOSYS }
