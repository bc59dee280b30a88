// SPDX-License-Identifier: Apache-2.0

// Executions can have an output directory, one for each version, below the workspace. It is created inside the box as the box
// user, which may have put something else there.

package sessionfiles

import (
	"archive/tar"
	"bytes"
	"context"
	"maps"
	"path"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// outputVariable is the environment variable with the output directory of an execution.
const outputVariable = "OUTPUT_DIR"

// OutputDir is the path of a version's directory in a box.
func OutputDir(version string) string { return path.Join(isolation.Workspace, "output", version) }

// OutputEnvironment returns env with the output directory of a version, without modifying env; "": there is no version.
func OutputEnvironment(version string, env map[string]string) (map[string]string, error) {
	if version == "" {
		return env, nil
	}
	if err := policy.ValidSpaceName("output_version", version); err != nil {
		return nil, err
	}
	if _, given := env[outputVariable]; given {
		return nil, fault.Field("env", outputVariable, "a variable other than "+outputVariable+" with output_version, which sets it")
	}
	with := map[string]string{outputVariable: OutputDir(version)}
	maps.Copy(with, env)
	return with, nil
}

// WorkingDirectory resolves the working directory of a request: "output" is the output directory of its version.
func WorkingDirectory(cwd, version string) string {
	if cwd == "output" && version != "" {
		return OutputDir(version)
	}
	return cwd
}

// PrepareOutputs creates the output directory of a version in a session. An existing one keeps its content. Then it removes
// versions that are too many or too old, unless a program of the session uses them.
func PrepareOutputs(ctx context.Context, s *session.Session, version string) error {
	if version == "" {
		return nil
	}
	var empty bytes.Buffer
	if err := tar.NewWriter(&empty).Close(); err != nil {
		return err
	}
	if _, err := Unpack(ctx, s, BoxUser, &files.Unpack{Path: []byte(OutputDir(version))}, &empty); err != nil {
		return err
	}
	limits := s.Config().Files
	if limits.OutputVersions == 0 && limits.OutputAge == 0 {
		return nil
	}
	_, _, err := Do(ctx, s, BoxUser, &files.Request{Prune: &files.Prune{
		Path: []byte(path.Dir(OutputDir(version))), Except: []byte(version), Keep: limits.OutputVersions, Age: time.Duration(limits.OutputAge),
	}}, nil)
	if ctx.Err() != nil {
		return err
	}
	return nil // what a program has made inaccessible cannot be removed, and does no harm
}
