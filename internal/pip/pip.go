// SPDX-License-Identifier: Apache-2.0

// Package pip says what pip is told, so that what a directory needs of Python is installed in one way, whoever asks.
package pip

// Install is what pip is told about a directory that has a file.
type Install struct {
	File string   `json:"file"`
	Args []string `json:"args"` // in that directory; "." is the directory itself, which the first such file counts for
}

// Installs lists the files that pip is told about, in the order in which that is done.
func Installs() []Install {
	return []Install{
		{"requirements.txt", []string{"-r", "requirements.txt"}},
		{"pyproject.toml", []string{"."}},
		{"setup.py", []string{"."}},
	}
}

// Options are those of every "pip install" where nobody is there to ask or to read.
func Options() []string {
	return []string{"--no-input", "--disable-pip-version-check", "--no-warn-script-location"}
}
