// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The wait for a kernel that does not answer each message, such as one without nf_tables, ends.
func TestAMissingNetlinkAnswerTimesOut(t *testing.T) {
	t.Parallel()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := prepare(time.Millisecond)(c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer to nothing: err = %v, want err is os.ErrDeadlineExceeded", err)
	}
}
