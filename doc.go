// SPDX-License-Identifier: Apache-2.0

// Package boxd is a sandbox supervisor for hosts that run agents; see README.md. The code is in the
// rooms below, and the tests here hold the house together.
package boxd
