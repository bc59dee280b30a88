// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"slices"
	"testing"
)

func TestAnImageReferenceIsLookedUpUnderItsLocalNames(t *testing.T) {
	t.Parallel()
	for image, want := range map[string][]string{
		"python":                         {"python", "python:latest", "docker.io/library/python", "docker.io/library/python:latest"},
		"python:3.12":                    {"python:3.12", "docker.io/library/python:3.12"},
		"rockchin/langbot-sandbox:1":     {"rockchin/langbot-sandbox:1", "docker.io/rockchin/langbot-sandbox:1"},
		"registry.example/a/b":           {"registry.example/a/b", "registry.example/a/b:latest"},
		"localhost:5000/a@sha256:0":      {"localhost:5000/a@sha256:0"},
		"localhost/a:1":                  {"localhost/a:1"},
		"python@sha256:0":                {"python@sha256:0", "docker.io/library/python@sha256:0"},
		"/":                              {"/", "/:latest", "docker.io//", "docker.io//:latest"}, // of no image
		"docker.io/rockchin/langbot-box": {"docker.io/rockchin/langbot-box", "docker.io/rockchin/langbot-box:latest"},
	} {
		if got := calledHere(image); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}
