#!/usr/bin/env bash
# Sourced by the scripts that install packages: keep the user's settings for other environments out of ours.
# PIP_REQUIRE_HASHES stays: it is a rule of the machine's administrator.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PIP_TARGET PIP_PREFIX PIP_ROOT PIP_CONSTRAINT PIP_REQUIREMENT PIP_NO_DEPS
unset PIP_ONLY_BINARY PIP_NO_BINARY
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_VIRTUALENV=0
