// The parts of a Kubernetes control plane that tests run, in one program: kube-apiserver, kube-controller-manager and
// kube-scheduler. Its first argument says which.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	var part func() *cobra.Command
	if len(os.Args) > 1 {
		part = parts[os.Args[1]]
	}
	if part == nil {
		fmt.Fprintln(os.Stderr, "usage: kube kube-apiserver|kube-controller-manager|kube-scheduler [options]")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(cli.Run(part()))
}
