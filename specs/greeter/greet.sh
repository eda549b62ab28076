#!/bin/sh
echo "${GREETING:-Hello}, ${1:?whom?}"
