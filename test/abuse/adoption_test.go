// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// boxd runs a daemon's boxd that should not come up, and returns what it says.
func boxd(t *testing.T, d *boxtest.Daemon) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config).CombinedOutput()
	return string(out), err
}
