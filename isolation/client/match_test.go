// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/isolation"
)

// The greeting of a keeper of any version can be decoded, so that the keeper can be told to
// leave.
func TestAGreetingOfAnotherVersionIsUnderstood(t *testing.T) {
	t.Parallel()
	want := &isolation.Greeting{Version: isolation.KeeperVersion, Flags: []string{"-a=1", "-b=2"}, Programs: "x"}
	for _, tc := range []struct {
		got      isolation.Greeting
		mismatch string
	}{
		{*want, ""},
		{isolation.Greeting{Version: isolation.KeeperVersion + 1, Other: "whatever it says"}, fmt.Sprintf("it speaks version %d, not %d", isolation.KeeperVersion+1, isolation.KeeperVersion)},
		{isolation.Greeting{Version: 3}, fmt.Sprintf("it speaks version 3, not %d", isolation.KeeperVersion)},
		{isolation.Greeting{Version: isolation.KeeperVersion, Flags: []string{"-a=1", "-b=3"}, Programs: "x"}, `"-b=3" instead of "-b=2"`},
		{isolation.Greeting{Version: isolation.KeeperVersion, Flags: []string{"-a=1"}, Programs: "x"}, `nothing more instead of "-b=2"`},
		{isolation.Greeting{Version: isolation.KeeperVersion, Flags: want.Flags, Programs: "y"}, "another program"},
	} {
		_, reply, err := isolation.DecodeKeeperReply(isolation.EncodeKeeperReply(0, &tc.got))
		greeting, ok := reply.(*isolation.Greeting)
		if err != nil || !ok || !cmp.Equal(greeting, &tc.got) {
			t.Errorf("%+v arrives as %+v, %v", tc.got, reply, err)
			continue
		}
		if mismatch := greetingMismatch(greeting, want); (mismatch == "") != (tc.mismatch == "") || !strings.Contains(mismatch, tc.mismatch) {
			t.Errorf("%+v: %q, want %q", tc.got, mismatch, tc.mismatch)
		}
	}
	external := &isolation.Greeting{Version: isolation.KeeperVersion, Flags: want.Flags}
	if mismatch := greetingMismatch(want, external); mismatch != "" {
		t.Errorf("the program of a keeper of its own unit: %s", mismatch)
	}
}
