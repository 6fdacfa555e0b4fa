package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSettlePortsNamesEveryClash(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", loopback+":0")
	require.NoError(t, err)
	defer ln.Close()
	used := ln.Addr().(*net.TCPAddr).Port
	free, err := freePort(nil)
	require.NoError(t, err)
	twice, wrong := free, 70_000

	err = settlePorts([]portClaim{
		{wants: "the store", change: "--store-port", port: &used},
		{wants: "Envoy", change: "--port", port: &free},
		{wants: "xds", change: "--admin-port", port: &twice},
		{wants: "the worker", change: "--worker-port", port: &wrong},
	})
	require.ErrorContains(t, err, "is in use, and the store wants it: choose another with --store-port")
	require.ErrorContains(t, err, "is wanted by Envoy and by xds: choose another with --admin-port")
	require.ErrorContains(t, err, "the worker wants port 70000, which does not exist: choose another with --worker-port")
}

func TestSettlePortsFindsFreeOnes(t *testing.T) {
	t.Parallel()
	ports := make([]int, 8)
	var claims []portClaim
	for i := range ports {
		claims = append(claims, portClaim{wants: "someone", port: &ports[i]})
	}
	require.NoError(t, settlePorts(claims))
	seen := map[int]bool{}
	for _, port := range ports {
		assert.False(t, seen[port], "each gets its own")
		seen[port] = true
		assert.True(t, available(loopback, port))
		assert.Less(t, port, freeTo)
	}
}
