// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package main

// foreign are the calls of this architecture alone: none.
func foreign() map[string]attempt { return nil }
