// SPDX-License-Identifier: Apache-2.0

// Package protocol has the messages of E2B's RPCs, generated from the descriptions beside this file.
package protocol

//go:generate protoc --proto_path=. --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative,package_suffix=,simple=true process.proto filesystem.proto sandboxagent.proto
