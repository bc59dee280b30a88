// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"os"
	"testing"
)

// groundVariable names the machine that tests run on: this host, or a virtual machine. If it is set, a test that lacks something
// here is left to another machine, and the program that set it makes sure that the test runs on one; see test/run.
const groundVariable = "BOXD_TEST_GROUND"

// LogOfBoxd begins the log of a daemon after the output of a failed test.
const LogOfBoxd = "log of boxd:"

// LeftTo begins the message of a test that is left to another machine.
const LeftTo = "left to another ground, for it needs "

// OwnKernel is what a test needs that distribution kernels lack, such as failing allocations (CONFIG_FAILSLAB). Where the machine
// runs a distribution kernel, because it can, such a test runs nowhere, and the summary says so.
const OwnKernel = "the kernel of test/vm/kernel.config"

// NotEmulated is what a test needs for which an emulated processor is too slow. Where the machine has no other processor, such a
// test runs nowhere, and the summary says so.
const NotEmulated = "a processor that is not emulated"

// Emulation is the ground of a machine whose processor is emulated.
const Emulation = "emulation"

// RequireSpeed leaves a test to another ground where a processor is emulated.
func RequireSpeed(t testing.TB) {
	t.Helper()
	if os.Getenv(groundVariable) == Emulation {
		Missing(t, NotEmulated)
	}
}

// RequireSources leaves a test that reads files of this repository to a ground that has them. A machine has the test programs and
// little else; see test/run.
func RequireSources(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("../../go.mod"); err != nil {
		Missing(t, "the sources of boxd")
	}
}

// Lacks begins the message of a test that is skipped, or fails, if there is no other machine.
const Lacks = "missing: "

// Measured begins the message of a test with rows of a Markdown table, which say how long something took; see test/run.
const Measured = "measured:"

// Missing says what a test lacks. If tests run on more than one machine, the test is left to
// another; otherwise it is skipped, or fails where skipping is not allowed.
func Missing(t testing.TB, what string) {
	t.Helper()
	switch {
	case os.Getenv(groundVariable) != "":
		t.Skip(LeftTo + what)
	case os.Getenv(strictVariable) != "":
		t.Fatal(Lacks + what)
	}
	t.Skip(Lacks + what)
}
