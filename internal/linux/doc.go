// SPDX-License-Identifier: Apache-2.0

// Package linux wraps system calls of Linux that several programs need.
package linux
