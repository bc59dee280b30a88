// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A box speaks the protocol of the boxinit that it was started with, and outlives boxd: each
// message to and from PID 1 has the bytes that were recorded for the BoxVersion it is of: but for the
// last request and the last reply, which pass between a keeper and the boxinit of one release, the last four requests are of 5, the two
// before them of 4, the two before those of 3, the two before those of 2, and all others of 1.
func TestMessagesOfBoxesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	var lines []string
	for i, m := range boxRequests() {
		if i != 5 { // the long command, whose fields other messages have too
			lines = append(lines, "request "+hex.EncodeToString(m.Encode()))
		}
	}
	for _, m := range boxReplies() {
		lines = append(lines, "reply "+hex.EncodeToString(m.Encode()))
	}
	golden(t, "box_messages.hex", lines)
}

// golden compares lines with those of a file of testdata.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d messages, but %s has %d, want len(lines) == len(want)", len(lines), name, len(want))
	}
	for i, line := range lines {
		if line != want[i] {
			t.Errorf("%s, line %d:\n%s, but it has always been\n%s", name, i+1, line, want[i])
		}
	}
}

// A keeper and a boxd of different versions understand each other well enough that one can tell
// the other to leave.
func TestTheHandshakeIsTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	for want, got := range map[string][]byte{
		"01" + "07000000":        EncodeKeeperRequest(9, &Hello{Version: 7}),
		"0c" + "09000000":        EncodeKeeperRequest(9, &Leave{}),
		"0d" + "09000000":        EncodeKeeperRequest(9, &Quit{}),
		"06" + "09000000":        EncodeKeeperReply(9, &Done{}),
		"01" + "07000000" + "3f": EncodeKeeperReply(9, &Greeting{Version: 7, Other: "?"}),
	} {
		if text := hex.EncodeToString(got); text != want {
			t.Errorf("%s, but it has always been %s", text, want)
		}
	}
}
