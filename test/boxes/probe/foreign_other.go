// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package main

import "syscall"

// foreign are the calls of this architecture alone: none.
func foreign() map[string]attempt { return nil }

// foreignCall would make a call of 32-bit programs, for which this architecture has no door here.
func foreignCall(uint32) error { return syscall.ENOSYS }
