// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestTheRecordsOfTheBenchmarkCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	if _, err := sourceWithoutRecords("../.."); err != nil {
		t.Error(err)
	}
}
